"""What XLA's operations compute, as functions of JAX arrays.

Operands come by position, attributes by the names `xla_builder` gives them. A tuple is a Python
tuple; a computation among the attributes has a `function` and a `key`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.builder import window_lowerings
from torch_xdist.builder.shapes import element_type
from torch_xdist.errors import ArgumentError, NoLoweringError

_REFUSED = {
    "SetDimensionSize": "sizes are known when a program is made; mask what lies beyond the size",
    "DynamicReshape": "sizes are known when a program is made; use Reshape",
}


def find(name: str) -> Callable[..., Any]:
    """The function of an operation. Raises NoLoweringError or ArgumentError where none is."""
    if name in _REFUSED:
        raise NoLoweringError(f"xla_builder: {name} is not there: {_REFUSED[name]}")
    found = LOWERINGS.get(name)
    if found is None:
        raise ArgumentError(
            f"xla_builder: there is no operation {name!r}; there are {', '.join(sorted(LOWERINGS))}"
        )
    return found


def _broadcast_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """XLA's builder broadcasts scalars, and dims of size 1."""

    def call(a: Any, b: Any) -> Any:
        return function(*jnp.broadcast_arrays(a, b))

    return call


def _shift_right(a: Any, b: Any) -> Any:
    is_unsigned = jnp.issubdtype(a.dtype, jnp.unsignedinteger)
    return (lax.shift_right_logical if is_unsigned else lax.shift_right_arithmetic)(a, b)


def _reshape(
    x: Any,
    *,
    sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
    inferred_dimension: int | None = None,
) -> Any:
    return lax.reshape(x, tuple(sizes), dimensions)


def _slice_in_dim(x: Any, *, start_index: int, limit_index: int, dimno: int, stride: int) -> Any:
    return lax.slice_in_dim(x, start_index, limit_index, stride, dimno)


def _dynamic_slice(x: Any, *starts: Any, slice_sizes: Sequence[int]) -> Any:
    return lax.dynamic_slice(x, starts, slice_sizes)


def _dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    return lax.dynamic_update_slice(x, update, starts)


def _convert(x: Any, *, to_type: str) -> Any:
    return lax.convert_element_type(x, element_type(to_type))


def _bitcast(x: Any, *, to_type: str) -> Any:
    return lax.bitcast_convert_type(x, element_type(to_type))


def _pad(x: Any, value: Any, *, config: Sequence[Sequence[int]]) -> Any:
    return lax.pad(x, value, [(before, after, inside) for before, after, inside in config])


def _select(which: Any, on_true: Any, on_false: Any) -> Any:
    return lax.select(jnp.broadcast_to(which, on_true.shape), on_true, on_false)


def _triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = True,
    lower: bool = False,
    unit_diagonal: bool = False,
    transpose_a: bool = False,
) -> Any:
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=left_side,
        lower=lower,
        unit_diagonal=unit_diagonal,
        transpose_a=transpose_a,
    )


def _clamp(x: Any, least: Any, most: Any) -> Any:
    return lax.clamp(jnp.broadcast_to(least, x.shape), x, jnp.broadcast_to(most, x.shape))


def _conditional(
    which: Any, if_true: Any, if_false: Any, *, true_computation: Any, false_computation: Any
) -> Any:
    return lax.cond(
        which,
        lambda: true_computation.function(if_true),
        lambda: false_computation.function(if_false),
    )


def _while(state: Any, *, condition_computation: Any, body_computation: Any) -> Any:
    return lax.while_loop(condition_computation.function, body_computation.function, state)


def _dimension_size(x: Any, *, dimension: int) -> Any:
    return jnp.int32(x.shape[dimension])


def _iota(*, shape: Any, iota_dimension: int) -> Any:
    return lax.broadcasted_iota(element_type(shape["type"]), tuple(shape["sizes"]), iota_dimension)


def _sort(
    *arrays: Any, comparator: Any, dimension: int | None = None, is_stable: bool | None = None
) -> Any:
    """By the first array; JAX knows two comparators."""
    dim = arrays[0].ndim - 1 if dimension is None else dimension
    order = window_lowerings.known(comparator, "Sort", {"Lt": False, "Gt": True})
    places = jnp.argsort(arrays[0], dim, stable=True, descending=order)
    found = tuple(jnp.take_along_axis(x, places, dim) for x in arrays)
    return found if len(found) > 1 else found[0]


def _map(*arrays: Any, computation: Any, dimensions: Sequence[int]) -> Any:
    function = computation.function
    for _ in dimensions:
        function = jax.vmap(function)
    return function(*arrays)


def _call(*arguments: Any, computation: Any) -> Any:
    return computation.function(*arguments)


LOWERINGS: dict[str, Callable[..., Any]] = {
    **{
        name: _broadcast_first(function)
        for name, function in {
            "Add": lax.add, "Sub": lax.sub, "Mul": lax.mul, "Div": lax.div, "Pow": lax.pow,
            "Rem": lax.rem, "And": lax.bitwise_and, "Or": lax.bitwise_or, "Xor": lax.bitwise_xor,
            "Eq": lax.eq, "Ne": lax.ne, "Le": lax.le, "Lt": lax.lt, "Ge": lax.ge, "Gt": lax.gt,
            "ShiftLeft": lax.shift_left, "ShiftRight": _shift_right,
            "Max": lax.max, "Min": lax.min, "Atan2": lax.atan2,
        }.items()
    },
    "Dot": lax.dot, "Neg": lax.neg, "Not": lax.bitwise_not,
    "Acos": lax.acos, "Asin": lax.asin, "Atan": lax.atan, "Ceil": lax.ceil, "Cos": lax.cos,
    "Cosh": lax.cosh, "Erf": lax.erf, "Erfc": lax.erfc, "ErfInv": lax.erf_inv, "Exp": lax.exp,
    "Expm1": lax.expm1, "Floor": lax.floor, "Log": lax.log, "Log1p": lax.log1p, "Sqrt": lax.sqrt,
    "Real": lax.real, "Imag": lax.imag, "Clz": lax.clz, "Conj": lax.conj, "Rsqrt": lax.rsqrt,
    "Sin": lax.sin, "Sinh": lax.sinh, "Tan": lax.tan, "Tanh": lax.tanh, "Abs": lax.abs,
    "Sign": lax.sign, "Reshape": _reshape,
    "Broadcast": lambda x, *, sizes: lax.broadcast(x, tuple(sizes)),
    "BroadcastInDim": lambda x, *, sizes, dimensions: lax.broadcast_in_dim(x, sizes, dimensions),
    "Slice": lambda x, *, start_indices, limit_indices, strides: lax.slice(
        x, start_indices, limit_indices, strides
    ),
    "SliceInDim": _slice_in_dim,
    "DynamicSlice": _dynamic_slice, "DynamicUpdateSlice": _dynamic_update_slice,
    "Convert": _convert, "BitcastConvert": _bitcast, "Pad": _pad, "Select": _select,
    "Transpose": lambda x, *, permutation: lax.transpose(x, permutation),
    "TriangularSolve": _triangular_solve, "Clamp": _clamp,
    "GetTupleElement": lambda parts, *, index: parts[index],
    "Conditional": _conditional, "While": _while, "GetDimensionSize": _dimension_size,
    "Rev": lambda x, *, dimensions: lax.rev(x, dimensions),
    "Tuple": lambda *parts: parts,
    "ConcatInDim": lambda *parts, dimension: lax.concatenate(parts, dimension),
    "Call": _call, "Constant": lambda *, value: jnp.asarray(value), "Iota": _iota,
    "Sort": _sort, "Map": _map,
    **window_lowerings.LOWERINGS,
}  # fmt: skip

"""The `_foreach_` operators: a pointwise or reducing row for each element of a list.

Torch does not promote the operands of these, so each element is promoted here by torch's own
rule, halves are computed in float32, and the result is rounded to the element's result dtype.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PromotionKind
from torch._prims_common import elementwise_dtypes

from torch_xdist.dtypes import to_jax, to_torch
from torch_xdist.ops.largest import largest
from torch_xdist.ops.operands import Number, convert
from torch_xdist.ops.reduce import vector_norm
from torch_xdist.ops.table import LOWERINGS, add_rows, lowers

Arrays = Sequence[jax.Array]
Row = Callable[..., Any]
_NUMBER_OF = {"b": True, "i": 1, "f": 1.0, "c": 1j}


@lru_cache(maxsize=4096)
def _dtypes(
    arrays: tuple[tuple[bool, np.dtype], ...], numbers: str, kind: PromotionKind
) -> tuple[np.dtype, np.dtype]:
    """Computation and result dtype. Arrays are given as (has dims, dtype), numbers by kind."""
    operands = [
        torch.empty([1] * dims, dtype=to_torch(dtype), device="meta") for dims, dtype in arrays
    ]
    computed, result = elementwise_dtypes(
        *operands, *(_NUMBER_OF[letter] for letter in numbers), type_promotion_kind=kind
    )
    return to_jax(computed), to_jax(result)


def _letter(number: Number) -> str:
    dtype = jnp.asarray(number).dtype
    if dtype == jnp.bool_:
        return "b"
    if jnp.issubdtype(dtype, jnp.integer):
        return "i"
    return "c" if jnp.issubdtype(dtype, jnp.complexfloating) else "f"


def promoted(row: Row, kind: PromotionKind = PromotionKind.DEFAULT) -> Row:
    """`row` on operands of any dtypes: promoted as torch promotes, rounded to its result.

    The first `len(arrays)` operands are arrays, the others numbers.
    """

    def element(arrays: Arrays, numbers: Sequence[Number] = (), **kwargs: Any) -> jax.Array:
        types = tuple((array.ndim > 0, array.dtype) for array in arrays)
        letters = "".join(_letter(number) for number in numbers)
        computed, result = _dtypes(types, letters, kind)
        wide = [convert(array, computed) for array in arrays]
        return convert(row(*wide, *numbers, **kwargs), result)

    return element


_FLOAT_FUNCTIONS = (
    "acos asin atan cos cosh erf erfc exp expm1 lgamma log log10 log1p log2 reciprocal rsqrt "
    "sigmoid sin sinh sqrt tan tanh"
)
_SAME_DTYPE_FUNCTIONS = "ceil floor frac neg round sign trunc"


def _each(name: str, kind: PromotionKind) -> Row:
    def over(self: Arrays) -> list[jax.Array]:
        element = promoted(LOWERINGS[f"aten.{name}.default"], kind)
        return [element([array]) for array in self]

    return over


for _name in _FLOAT_FUNCTIONS.split():
    add_rows({f"aten._foreach_{_name}.default": _each(_name, PromotionKind.INT_TO_FLOAT)})
for _name in _SAME_DTYPE_FUNCTIONS.split():
    add_rows({f"aten._foreach_{_name}.default": _each(_name, PromotionKind.DEFAULT)})
add_rows({"aten._foreach_abs.default": _each("abs", PromotionKind.COMPLEX_TO_FLOAT)})


def _binary(
    on_arrays: str, on_number: str, kind: PromotionKind = PromotionKind.DEFAULT
) -> dict[str, Row]:
    """The overloads of a list with a list, one number, a list of numbers, or a 0-d array."""

    def with_list(self: Arrays, other: Arrays, **kwargs: Any) -> list[jax.Array]:
        element = promoted(LOWERINGS[on_arrays], kind)
        return [element(pair, **kwargs) for pair in zip(self, other, strict=True)]

    def with_array(self: Arrays, other: jax.Array, **kwargs: Any) -> list[jax.Array]:
        return with_list(self, [other] * len(self), **kwargs)

    def with_numbers(self: Arrays, scalars: Sequence[Number]) -> list[jax.Array]:
        element = promoted(LOWERINGS[on_number], kind)
        pairs = zip(self, scalars, strict=True)
        return [element([array], [number]) for array, number in pairs]

    def with_number(self: Arrays, scalar: Number) -> list[jax.Array]:
        return with_numbers(self, [scalar] * len(self))

    return {
        "List": with_list,
        "Tensor": with_array,
        "ScalarList": with_numbers,
        "Scalar": with_number,
    }


_BINARY = {
    "add": ("aten.add.Tensor", "aten.add.Scalar", PromotionKind.DEFAULT),
    "sub": ("aten.sub.Tensor", "aten.sub.Scalar", PromotionKind.DEFAULT),
    "mul": ("aten.mul.Tensor", "aten.mul.Scalar", PromotionKind.DEFAULT),
    "div": ("aten.div.Tensor", "aten.div.Scalar", PromotionKind.INT_TO_FLOAT),
    "pow": ("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", PromotionKind.DEFAULT),
    "clamp_max": ("aten.minimum.default", "aten.clamp_max.default", PromotionKind.DEFAULT),
    "clamp_min": ("aten.maximum.default", "aten.clamp_min.default", PromotionKind.DEFAULT),
    "minimum": ("aten.minimum.default", "aten.clamp_max.default", PromotionKind.DEFAULT),
    "maximum": ("aten.maximum.default", "aten.clamp_min.default", PromotionKind.DEFAULT),
}
_WITH_ARRAY = {"add", "mul", "div"}
for _name, (_on_arrays, _on_number, _kind) in _BINARY.items():
    for _overload, _row in _binary(_on_arrays, _on_number, _kind).items():
        if _overload != "Tensor" or _name in _WITH_ARRAY:
            add_rows({f"aten._foreach_{_name}.{_overload}": _row})


@lowers("aten._foreach_pow.ScalarAndTensor")
def pow_of_number(self: Number, exponent: Arrays) -> list[jax.Array]:
    element = promoted(lambda array, number: LOWERINGS["aten.pow.Scalar"](number, array))
    return [element([array], [self]) for array in exponent]


def _add_rows_of_quotient(name: str) -> None:
    """addcmul and addcdiv: self + value * (tensor1 times or over tensor2)."""

    def each(
        self: Arrays, tensor1: Arrays, tensor2: Arrays, scalars: Sequence[Number]
    ) -> list[jax.Array]:
        row = LOWERINGS[f"aten.{name}.default"]
        element = promoted(lambda a, b, c, value: row(a, b, c, value=value))
        operands = zip(self, tensor1, tensor2, scalars, strict=True)
        return [element(arrays, [value]) for *arrays, value in operands]

    def by_number(
        self: Arrays, tensor1: Arrays, tensor2: Arrays, value: Number = 1
    ) -> list[jax.Array]:
        return each(self, tensor1, tensor2, [value] * len(self))

    add_rows(
        {
            f"aten._foreach_{name}.Scalar": by_number,
            f"aten._foreach_{name}.ScalarList": each,
            f"aten._foreach_{name}.Tensor": each,
        }
    )


_add_rows_of_quotient("addcmul")
_add_rows_of_quotient("addcdiv")


@lowers("aten._foreach_lerp.List")
def lerp(self: Arrays, tensors1: Arrays, weights: Arrays) -> list[jax.Array]:
    element = promoted(LOWERINGS["aten.lerp.Tensor"])
    return [element(arrays) for arrays in zip(self, tensors1, weights, strict=True)]


@lowers("aten._foreach_lerp.ScalarList")
def lerp_by_numbers(self: Arrays, tensors1: Arrays, weight: Sequence[Number]) -> list[jax.Array]:
    element = promoted(LOWERINGS["aten.lerp.Scalar"])
    operands = zip(self, tensors1, weight, strict=True)
    return [element([start, end], [number]) for start, end, number in operands]


@lowers("aten._foreach_lerp.Scalar")
def lerp_by_number(self: Arrays, tensors1: Arrays, weight: Number) -> list[jax.Array]:
    return lerp_by_numbers(self, tensors1, [weight] * len(self))


@lowers("aten._foreach_norm.Scalar")
def norm(self: Arrays, ord: Number = 2, dtype: torch.dtype | None = None) -> list[jax.Array]:
    return [vector_norm(array, ord, dtype=dtype) for array in self]


@lowers("aten._foreach_powsum.Scalar")
def powsum(self: Arrays, ord: Number = 2, dtype: torch.dtype | None = None) -> list[jax.Array]:
    row = LOWERINGS["aten.pow.Tensor_Scalar"]
    wide = [array if dtype is None else convert(array, dtype) for array in self]
    element = promoted(
        lambda array: jnp.sum(row(jnp.abs(array), ord)), PromotionKind.COMPLEX_TO_FLOAT
    )
    return [element([array]) for array in wide]


@lowers("aten._foreach_max.default")
def largest_of_each(self: Arrays) -> list[jax.Array]:
    return [largest(array) for array in self]


@lowers("aten._foreach_clone.default")
def clone(self: Arrays, **_: Any) -> list[jax.Array]:
    return list(self)


@lowers("aten._foreach_copy.default")
def copy(self: Arrays, src: Arrays, non_blocking: bool = False) -> list[jax.Array]:
    return [LOWERINGS["aten.copy.default"](*pair) for pair in zip(self, src, strict=True)]


@lowers("aten._foreach_zero.default")
def zero(self: Arrays) -> list[jax.Array]:
    return [jnp.zeros_like(array) for array in self]


@lowers("aten._foreach_mm.default")
def mm(self: Arrays, mat2: Arrays) -> list[jax.Array]:
    return [LOWERINGS["aten.mm.default"](*pair) for pair in zip(self, mat2, strict=True)]


def _unscaled(gradient: jax.Array, inverse_scale: jax.Array) -> jax.Array:
    return convert(gradient.astype(inverse_scale.dtype) * inverse_scale, gradient.dtype)


@lowers("aten._amp_foreach_non_finite_check_and_unscale.default")
def unscale(
    self: Arrays, found_inf: jax.Array, inv_scale: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """The gradients times `inv_scale`, and 1 instead of `found_inf` where one is not finite."""
    finite = jnp.asarray(True)
    for gradient in self:
        finite = finite & jnp.all(jnp.isfinite(gradient))
    found = jnp.where(finite, found_inf, jnp.ones_like(found_inf))
    return [_unscaled(gradient, inv_scale) for gradient in self], found


@lowers("aten._amp_update_scale.default")
def update_scale(
    self: jax.Array,
    growth_tracker: jax.Array,
    found_inf: jax.Array,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> tuple[jax.Array, jax.Array]:
    """The next loss scale, and for how many steps it has held."""
    failed = found_inf.reshape(self.shape) != 0
    held = growth_tracker.reshape(self.shape) + 1
    grows = held == growth_interval
    grown = self * scale_growth_factor
    # A scale that would overflow stays.
    grown = jnp.where(jnp.isfinite(grown), grown, self)
    scale = jnp.where(failed, self * scale_backoff_factor, jnp.where(grows, grown, self))
    return scale, jnp.where(failed | grows, 0, held).reshape(growth_tracker.shape)

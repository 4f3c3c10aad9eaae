"""Dims whose sizes stay open in StableHLO: which leaves have them, and how operands broadcast.

JAX knows such a size as a symbol, so shapes hold expressions in their place. It broadcasts only
what it can prove to fit; torch_xla lets an open size stand for 1, or for the size it meets, which
is decided when the program runs. So operands of pointwise operators are broadcast here.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import torch
from jax.extend.core import Primitive
from jax.interpreters import mlir

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.device_trace import buffer_of
from torch_xdist.core.trace.plans import Plan
from torch_xdist.errors import ArgumentError
from torch_xdist.export.jax_lowering import broadcast_at_run_time

# The marked dims of buffers, by the buffer's id; an entry goes with its buffer.
_marked: dict[int, tuple[weakref.ref[jax.Array], set[int]]] = {}
_broadcast_p = Primitive("dynamic_broadcast")


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Leave the size of a dim of a device tensor that has a value open in StableHLO texts."""
    if not isinstance(tensor, XlaTensor):
        raise ArgumentError(f"_xla_mark_dynamic: the tensor is on {tensor.device}; give one on xla")
    if not -tensor.dim() <= dim < tensor.dim():
        raise ArgumentError(
            f"_xla_mark_dynamic: dim {dim} of a tensor of shape {tuple(tensor.shape)}; it has dims"
            f" 0 to {tensor.dim() - 1}"
        )
    buffer = buffer_of(tensor.value)
    key = id(buffer)
    if key not in _marked:
        _marked[key] = weakref.ref(buffer, lambda gone: _marked.pop(key, None)), set()
    _marked[key][1].add(dim % tensor.dim())


def marked_dims(buffer: Any) -> set[int]:
    """The dims of a buffer that were marked."""
    reference, dims = _marked.get(id(buffer), (None, set()))
    return dims if reference is not None and reference() is buffer else set()


def with_symbols(
    parameters: Sequence[jax.ShapeDtypeStruct], names: Sequence[dict[int, str]]
) -> list[jax.ShapeDtypeStruct]:
    """Parameters with symbols in the place of sizes: `names` has one for each open dim of each."""
    if not any(names):
        return list(parameters)
    scope = jax.export.SymbolicScope()
    found = []
    for parameter, of_dims in zip(parameters, names):
        sizes = [of_dims.get(dim, str(size)) for dim, size in enumerate(parameter.shape)]
        shape = jax.export.symbolic_shape(", ".join(sizes), scope=scope) if sizes else ()
        found.append(jax.ShapeDtypeStruct(shape, parameter.dtype))
    return found


def is_open(shape: Iterable[Any]) -> bool:
    """Whether a shape has a symbol among its sizes."""
    return not all(isinstance(size, int) for size in shape)


def broadcast_together(plan: Plan, arrays: list[Any]) -> list[Any]:
    """The operands of a row; those of a pointwise one in one shape, where a size is open."""
    is_pointwise = plan.op is not None and plan.op.is_pointwise
    if not is_pointwise or len(arrays) < 2 or not any(is_open(array.shape) for array in arrays):
        return arrays
    shape = _common_shape([array.shape for array in arrays])
    return [_broadcast_p.bind(array, shape=shape) for array in arrays]


def _common_shape(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Per dim a known size that is not 1, else an open one, else 1."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_common_size(sizes) for sizes in zip(*padded))


def _common_size(sizes: Sequence[Any]) -> Any:
    known = [size for size in sizes if isinstance(size, int) and size != 1]
    open_ones = [size for size in sizes if not isinstance(size, int)]
    return [*known, *open_ones, 1][0]


@_broadcast_p.def_abstract_eval
def _result(x: Any, *, shape: tuple[Any, ...]) -> Any:
    return jax.core.ShapedArray(shape, x.dtype)


mlir.register_lowering(_broadcast_p, broadcast_at_run_time)


def symbols_of(value: torch.Tensor) -> dict[int, str]:
    """The names of the open sizes of a fake tensor, by dim."""
    return {dim: str(size) for dim, size in enumerate(value.shape) if not isinstance(size, int)}

"""View operators on JAX arrays: how to read through one view step, and how to write through it.

`INVERSES[name](parent, new, *static)` gives the parent's array with the viewed part replaced. Steps
without an own inverse are written through by the positions they read.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xdist.dtypes import to_jax
from torch_xdist.ops.settled import settled_if_complex
from torch_xdist.ops.table import add_rows, lowers

INVERSES: dict[str, Callable[..., jax.Array]] = {}


def _inverse(*names: str) -> Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]:
    def enter(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        for name in names:
            INVERSES[name] = function
        return function

    return enter


@lowers("aten.view.default", "aten.reshape.default", "aten._reshape_alias.default")
def view(self: jax.Array, size: Sequence[int], stride: Any = None) -> jax.Array:
    shape = list(size)
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        shape[shape.index(-1)] = self.size // known if known else 0
    return self.reshape(shape)


@lowers("aten.view.dtype")
def view_dtype(self: jax.Array, dtype: torch.dtype) -> jax.Array:
    target = to_jax(dtype)
    if self.dtype == np.bool_:
        self = self.astype(np.uint8)
    if target == np.bool_:
        return view_dtype(self, torch.uint8) != 0
    if target.kind == "c" or self.dtype.kind == "c":
        return _view_complex(self, target)
    return _recast(self, target)


def _view_complex(self: jax.Array, target: np.dtype) -> jax.Array:
    """Reinterpretation through the real parts, since XLA casts no complex bits."""
    if self.dtype.kind == "c":
        real = np.dtype(f"f{self.dtype.itemsize // 2}")
        flat = jnp.stack([self.real, self.imag], -1).astype(real)
        flat = flat.reshape(*self.shape[:-1], 2 * self.shape[-1]) if self.ndim else flat
    else:
        flat = self
    if target.kind != "c":
        return flat if flat.dtype == target else _recast(flat, target)
    real = np.dtype(f"f{target.itemsize // 2}")
    flat = flat if flat.dtype == real else _recast(flat, real)
    pairs = flat.reshape(*flat.shape[:-1], flat.shape[-1] // 2, 2)
    return jax.lax.complex(pairs[..., 0], pairs[..., 1])


def _recast(self: jax.Array, target: np.dtype) -> jax.Array:
    old, new = self.dtype.itemsize, target.itemsize
    if old == new:
        return jax.lax.bitcast_convert_type(self, target)
    *outer, last = self.shape
    if old > new:
        parts = jax.lax.bitcast_convert_type(self, target)
        made = parts.reshape(*outer, last * (old // new))
    else:
        groups = self.reshape(*outer, last * old // new, new // old)
        made = jax.lax.bitcast_convert_type(groups, target)
    # XLA makes one of two casts in a row, and takes the first one's dims for those of both.
    return jax.lax.optimization_barrier(made)


@lowers("aten.expand.default")
def expand(self: jax.Array, size: Sequence[int], *, implicit: bool = False) -> jax.Array:
    lead = len(size) - self.ndim
    shape = [self.shape[i - lead] if n == -1 else n for i, n in enumerate(size)]
    return jnp.broadcast_to(self, shape)


@lowers("aten.permute.default")
def permute(self: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.transpose(self, [d % max(self.ndim, 1) for d in dims])


@lowers("aten.transpose.int")
def transpose(self: jax.Array, dim0: int, dim1: int) -> jax.Array:
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@lowers("aten.squeeze.default")
def squeeze(self: jax.Array) -> jax.Array:
    return self.reshape([n for n in self.shape if n != 1])


@lowers("aten.squeeze.dim", "aten.squeeze.dims")
def squeeze_dims(self: jax.Array, dim: int | Sequence[int]) -> jax.Array:
    dims = {d % max(self.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)}
    return self.reshape([n for i, n in enumerate(self.shape) if n != 1 or i not in dims])


@lowers("aten.unsqueeze.default")
def unsqueeze(self: jax.Array, dim: int) -> jax.Array:
    return jnp.expand_dims(self, dim)


@lowers("aten.select.int")
def select(self: jax.Array, dim: int, index: int) -> jax.Array:
    return jax.lax.index_in_dim(self, index, dim, keepdims=False)


@lowers("aten.slice.Tensor")
def slice_(
    self: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    dim %= self.ndim
    first, last = slice_bounds(self.shape[dim], start, end)
    return jax.lax.slice_in_dim(self, first, last, step, dim)


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """First position of a slice, and the one behind its last, clamped."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@lowers("aten.diagonal.default")
def diagonal(self: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    return jnp.diagonal(self, offset, dim1, dim2)


@lowers("aten.unfold.default")
def unfold(self: jax.Array, dimension: int, size: int, step: int) -> jax.Array:
    if self.ndim == 0:
        return self.reshape(1)[:size]
    dim = dimension % self.ndim
    count = (self.shape[dim] - size) // step + 1
    index = np.arange(count)[:, None] * step + np.arange(size)[None, :]
    windows = jnp.take(self, index.reshape(-1), axis=dim)
    shape = (*self.shape[:dim], count, size, *self.shape[dim + 1 :])
    return jnp.moveaxis(windows.reshape(shape), dim + 1, -1)


class Layout(NamedTuple):
    """Where the elements of a tensor lie in a storage, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        return math.prod(self.size)


def _positions(owner: Layout, layout: Layout) -> jax.Array:
    """For each element of a layout, its place in the row-major array of the storage's owner.

    Computed by the program: as a constant it would take 8 bytes an element.
    """
    dtype = np.int32 if _extent(layout) < 2**31 > owner.numel else np.int64
    positions = jnp.full(layout.size, layout.offset, dtype)
    for dim, stride in enumerate(layout.stride):
        positions = positions + jax.lax.broadcasted_iota(dtype, layout.size, dim) * dtype(stride)
    if _is_row_major(owner):
        return positions
    places = jnp.zeros_like(positions)
    step = 1
    for n, stride in reversed(list(zip(owner.size, owner.stride))):
        places = places + positions // dtype(max(stride, 1)) % dtype(n) * dtype(step)
        step *= n
    return places


def _extent(layout: Layout) -> int:
    return layout.offset + 1 + sum((n - 1) * s for n, s in zip(layout.size, layout.stride))


def _is_row_major(layout: Layout) -> bool:
    step = 1
    for n, stride in zip(reversed(layout.size), reversed(layout.stride)):
        if n != 1 and stride != step:
            return False
        step *= n
    return True


def read_strided(self: jax.Array, *, owner: Layout, layout: Layout) -> jax.Array:
    """The elements of a layout; `self` is the array of the tensor that owns the storage."""
    flat = self.reshape(-1)
    if _is_row_major(owner) and _is_row_major(layout):
        part = jax.lax.slice_in_dim(flat, layout.offset, layout.offset + layout.numel)
        return part.reshape(layout.size)
    return flat[_positions(owner, layout)]


def write_strided(parent: jax.Array, new: jax.Array, *, owner: Layout, layout: Layout) -> jax.Array:
    """The owner's array with the elements of a layout replaced."""
    flat = parent.reshape(-1)
    if _is_row_major(owner) and _is_row_major(layout):
        written = jax.lax.dynamic_update_slice_in_dim(flat, new.reshape(-1), layout.offset, 0)
    else:
        written = flat.at[_positions(owner, layout)].set(new, mode="drop")
    return written.reshape(parent.shape)


@lowers("aten.as_strided.default")
def as_strided(
    self: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> jax.Array:
    """`self` is the whole storage, flat or row-major."""
    layout = Layout(tuple(size), tuple(stride), storage_offset or 0)
    return read_strided(self, owner=Layout((self.size,), (1,), 0), layout=layout)


def _conj(self: jax.Array) -> jax.Array:
    return jnp.conj(self)


@lowers("aten.view_as_real.default")
def view_as_real(self: jax.Array) -> jax.Array:
    return jnp.stack([self.real, self.imag], -1)


@lowers("aten.view_as_complex.default")
def view_as_complex(self: jax.Array) -> jax.Array:
    return jax.lax.complex(self[..., 0], self[..., 1])


add_rows(
    {
        "aten.t.default": lambda self: self.T,
        "aten._conj.default": _conj,
        "aten._neg_view.default": jnp.negative,
    }
)


@_inverse(
    "aten.view.default",
    "aten._reshape_alias.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
)
def write_reshaped(parent: jax.Array, new: jax.Array, *static: Any) -> jax.Array:
    return new.reshape(parent.shape)


@_inverse("aten.transpose.int")
def write_transposed(parent: jax.Array, new: jax.Array, dim0: int, dim1: int) -> jax.Array:
    return transpose(new, dim0, dim1)


@_inverse("aten.t.default")
def write_t(parent: jax.Array, new: jax.Array) -> jax.Array:
    return new.T


@_inverse("aten.permute.default")
def write_permuted(parent: jax.Array, new: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.transpose(new, np.argsort([d % max(new.ndim, 1) for d in dims]))


@_inverse("aten.select.int")
def write_selected(parent: jax.Array, new: jax.Array, dim: int, index: int) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(parent, new, index % parent.shape[dim], dim)


@_inverse("aten.slice.Tensor")
def write_sliced(
    parent: jax.Array,
    new: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    dim %= parent.ndim
    first, last = slice_bounds(parent.shape[dim], start, end)
    if step == 1:
        new = settled_if_complex(new)
        return jax.lax.dynamic_update_slice_in_dim(parent, new, first, dim)
    where = (slice(None),) * dim + (slice(first, last, step),)
    return parent.at[where].set(new)


@_inverse("aten._conj.default")
def write_conj(parent: jax.Array, new: jax.Array) -> jax.Array:
    return jnp.conj(new)


@_inverse("aten._neg_view.default")
def write_neg(parent: jax.Array, new: jax.Array) -> jax.Array:
    return -new


@_inverse("aten.view_as_real.default")
def write_as_real(parent: jax.Array, new: jax.Array) -> jax.Array:
    return view_as_complex(new)


@_inverse("aten.view_as_complex.default")
def write_as_complex(parent: jax.Array, new: jax.Array) -> jax.Array:
    return view_as_real(new)


@_inverse("aten.view.dtype")
def write_dtype(parent: jax.Array, new: jax.Array, dtype: torch.dtype) -> jax.Array:
    if parent.dtype == np.bool_:
        return view_dtype(new, torch.uint8).reshape(parent.shape) != 0
    from_torch = {to_jax(d): d for d in _REINTERPRETABLE}
    return view_dtype(new, from_torch[parent.dtype]).reshape(parent.shape)


_REINTERPRETABLE = (
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.complex64, torch.complex128,
)  # fmt: skip


def write_by_position(
    step: Callable[..., jax.Array], parent: jax.Array, new: jax.Array, *static: Any, **named: Any
) -> jax.Array:
    """Write through any step that only moves elements: find where it reads from."""
    dtype = np.int32 if parent.size < 2**31 else np.int64
    places = jax.lax.iota(dtype, parent.size).reshape(parent.shape)
    read = step(places, *static, **named)
    flat = parent.reshape(-1).at[read.reshape(-1)].set(new.reshape(-1))
    return flat.reshape(parent.shape)

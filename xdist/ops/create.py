"""Arrays made from nothing: constants, ranges, identities, triangles.

The shape is static. Where `dtype` is not given, the caller casts the result to the dtype torch
chose. "Empty" arrays are zeros. Device, layout and memory format are the caller's affair.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xdist.dtypes import to_jax
from torch_xdist.ops.operands import Number, convert, scalar
from torch_xdist.ops.table import add_rows, lowers

Size = Sequence[int]


def _jax_dtype(dtype: torch.dtype | None) -> np.dtype:
    return to_jax(torch.get_default_dtype() if dtype is None else dtype)


@lowers("aten.full.default")
def full(
    size: Size, fill_value: Number, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    value = jnp.asarray(fill_value)
    return jnp.broadcast_to(value if dtype is None else convert(value, dtype), tuple(size))


def _constant(value: int) -> Callable[..., jax.Array]:
    def filled(size: Size, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> jax.Array:
        return jnp.full(tuple(size), value, _jax_dtype(dtype))

    return filled


def _constant_like(value: int) -> Callable[..., jax.Array]:
    def filled(self: jax.Array, *, dtype: torch.dtype | None = None, **_: Any) -> jax.Array:
        return jnp.full(self.shape, value, self.dtype if dtype is None else to_jax(dtype))

    return filled


def _new_constant(value: int) -> Callable[..., jax.Array]:
    def filled(
        self: jax.Array, size: Size, *_: Any, dtype: torch.dtype | None = None, **__: Any
    ) -> jax.Array:
        return jnp.full(tuple(size), value, self.dtype if dtype is None else to_jax(dtype))

    return filled


add_rows(
    {
        "aten.empty.memory_format": _constant(0),
        "aten.empty_permuted.default": _constant(0),
        "aten.empty_strided.default": _constant(0),
        "aten.zeros.default": _constant(0),
        "aten.ones.default": _constant(1),
        "aten.empty_like.default": _constant_like(0),
        "aten.zeros_like.default": _constant_like(0),
        "aten.ones_like.default": _constant_like(1),
        "aten.new_empty.default": _new_constant(0),
        "aten.new_empty_strided.default": _new_constant(0),
        "aten.new_zeros.default": _new_constant(0),
        "aten.new_ones.default": _new_constant(1),
    }
)


@lowers("aten.full_like.default")
def full_like(
    self: jax.Array, fill_value: Number, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    like = self if dtype is None else jnp.zeros((), to_jax(dtype))
    return jnp.broadcast_to(scalar(fill_value, like), self.shape)


@lowers("aten.new_full.default")
def new_full(
    self: jax.Array,
    size: Size,
    fill_value: Number,
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> jax.Array:
    like = self if dtype is None else jnp.zeros((), to_jax(dtype))
    return jnp.broadcast_to(scalar(fill_value, like), tuple(size))


@lowers("aten.scalar_tensor.default")
def scalar_tensor(s: Number, *, dtype: torch.dtype | None = None, **_: Any) -> jax.Array:
    return convert(jnp.asarray(s), _jax_dtype(dtype))


def _steps(start: Any, end: Any, step: Any, dtype: torch.dtype | None) -> jax.Array:
    """start, start + step, ... below end, counted in int64 or float64 as torch does."""
    numbers: tuple[Any, ...] = (start, end, step)
    if dtype is not None and not dtype.is_floating_point:
        numbers = tuple(int(number) for number in numbers)
    whole = all(isinstance(number, int) for number in numbers)
    start, end, step = numbers
    count = -(-(end - start) // step) if whole else int(np.ceil((end - start) / step))
    wide = jnp.int64 if whole else jnp.float64
    places = jnp.arange(count, dtype=wide)
    values = jnp.asarray(start, wide) + places * jnp.asarray(step, wide)
    return values if dtype is None else values.astype(to_jax(dtype))


@lowers("aten.arange.default")
def arange(end: Any, *, dtype: torch.dtype | None = None, **_: Any) -> jax.Array:
    return _steps(0, end, 1, dtype)


@lowers("aten.arange.start", "aten.arange.start_step")
def arange_from(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    return _steps(start, end, step, dtype)


@lowers("aten.range.default", "aten.range.step")
def closed_range(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    count = int(np.floor((end - start) / step)) + 1
    values = start + jnp.arange(count, dtype=jnp.float64) * step
    return convert(values, _jax_dtype(dtype))


def _even(start: Any, end: Any, steps: int, wide: np.dtype) -> jax.Array:
    """`steps` numbers from start to end, the upper half counted back from the end."""
    start, end = (convert(jnp.asarray(number), wide) for number in (start, end))
    if steps < 2:
        return jnp.broadcast_to(start, (steps,))
    step = (end - start) / (steps - 1)
    places = jnp.arange(steps)
    from_end = end - step * (steps - 1 - places)
    return jnp.where(places < steps // 2, start + step * places, from_end)


def _counting_dtype(dtype: torch.dtype | None) -> np.dtype:
    """The dtype the numbers between two ends are counted in."""
    target = _jax_dtype(dtype)
    if jnp.issubdtype(target, jnp.complexfloating) or target in (np.float32, np.float64):
        return target
    return np.dtype(np.float64)


_PAIRED = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


@lowers(*(f"aten.linspace.{overload}" for overload in _PAIRED))
def linspace(
    start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    target = _jax_dtype(dtype)
    if jnp.issubdtype(target, jnp.integer):
        # The ends are whole numbers then, the numbers between are truncated.
        start, end = (convert(jnp.asarray(number), target) for number in (start, end))
    return convert(_even(start, end, steps, _counting_dtype(dtype)), target)


@lowers(*(f"aten.logspace.{overload}" for overload in _PAIRED))
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> jax.Array:
    target = _jax_dtype(dtype)
    if jnp.issubdtype(target, jnp.integer):
        start, end = (convert(jnp.asarray(number), target) for number in (start, end))
    exponents = _even(start, end, steps, _counting_dtype(dtype))
    return convert(jax.lax.pow(scalar(base, exponents) + 0 * exponents, exponents), target)


@lowers("aten.eye.default", "aten.eye.m")
def eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **_: Any) -> jax.Array:
    return jnp.eye(n, m, dtype=_jax_dtype(dtype))


def _below(rows: int, columns: int, diagonal: int) -> jax.Array:
    """Which entries of a matrix lie on the diagonal or below it: bool [rows, columns]."""
    row = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    return jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 1) - row <= diagonal


@lowers("aten.tril.default")
def tril(self: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.where(
        _below(self.shape[-2], self.shape[-1], diagonal), self, jnp.zeros((), self.dtype)
    )


@lowers("aten.triu.default")
def triu(self: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.where(
        _below(self.shape[-2], self.shape[-1], diagonal - 1), jnp.zeros((), self.dtype), self
    )


@lowers("aten.tril_indices.default")
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    places = np.tril_indices(row, offset, col)
    return jnp.asarray(np.stack(places).astype(np.int64 if dtype is None else to_jax(dtype)))


@lowers("aten.triu_indices.default")
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    places = np.triu_indices(row, offset, col)
    return jnp.asarray(np.stack(places).astype(np.int64 if dtype is None else to_jax(dtype)))

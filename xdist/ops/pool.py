"""Pooling: maxima, means and their gradients over fixed, adaptive and fractional windows.

Inputs are [n, c, *sizes] or [c, *sizes]; only the trailing dimensions matter here.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from torch_xdist.ops import forms
from torch_xdist.ops.maxima import is_quicker_by_dim, max_with_indices, spread_by_indices
from torch_xdist.ops.operands import widened
from torch_xdist.ops.positions import bounded, counted, width
from torch_xdist.ops.settled import settled
from torch_xdist.ops.table import lowers
from torch_xdist.ops.windows import Windows, sums, windows


def _trailing(x: jax.Array, rank: int) -> tuple[int, ...]:
    return x.shape[x.ndim - rank :]


# Maxima over fixed windows.


def _max_pool(
    x: jax.Array,
    rank: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[jax.Array, jax.Array]:
    dims = windows(_trailing(x, rank), kernel_size, stride, padding, dilation, ceil_mode)
    positions = [dim.positions() for dim in dims]
    return settled(max_with_indices(x, positions, by_dim=is_quicker_by_dim(dims)))


@lowers("aten.max_pool2d_with_indices.default")
def max_pool2d_with_indices(
    self: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[jax.Array, jax.Array]:
    return _max_pool(self, 2, kernel_size, stride, padding, dilation, ceil_mode)


@lowers("aten.max_pool3d_with_indices.default")
def max_pool3d_with_indices(
    self: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[jax.Array, jax.Array]:
    return _max_pool(self, 3, kernel_size, stride, padding, dilation, ceil_mode)


@lowers(
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
)
def max_pool_with_indices_backward(
    grad_output: jax.Array,
    self: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: jax.Array,
) -> jax.Array:
    sizes = _trailing(self, len(kernel_size))
    dims = windows(sizes, kernel_size, stride, padding, dilation, ceil_mode)
    return spread_by_indices(settled(widened(grad_output)), indices, sizes, dims)


# Means over fixed windows.


def _divisor(dims: Sequence[Windows], count_include_pad: bool, override: int | None) -> np.ndarray:
    """How many positions each window counts, broadcast against [*out]."""
    if override is not None:
        return np.asarray(override)
    count = np.ones((), np.int64)
    for dim in dims:
        start = np.arange(dim.out) * dim.stride - dim.padding
        # Windows of ceil_mode end at the padding's end even where padding counts.
        end = np.minimum(start + dim.kernel, dim.size + dim.padding)
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, dim.size)
        count = count[..., None] * (end - start)
    return count


def _avg_pool(
    x: jax.Array, dims: Sequence[Windows], count_include_pad: bool, override: int | None
) -> jax.Array:
    total = sums(widened(x), dims)
    divisor = jnp.asarray(_divisor(dims, count_include_pad, override), total.dtype)
    # torch divides integers downwards to zero.
    divide = jnp.divide if jnp.issubdtype(total.dtype, jnp.inexact) else jax.lax.div
    return divide(total, jnp.broadcast_to(divisor, total.shape))


@lowers("aten.avg_pool2d.default")
def avg_pool2d(
    self: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    dims = windows(_trailing(self, 2), kernel_size, stride, padding, ceil_mode=ceil_mode)
    return _avg_pool(self, dims, count_include_pad, divisor_override)


@lowers("aten.avg_pool3d.default")
def avg_pool3d(
    self: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    dims = windows(_trailing(self, 3), kernel_size, stride, padding, ceil_mode=ceil_mode)
    return _avg_pool(self, dims, count_include_pad, divisor_override)


def _sums_transposed(grad: jax.Array, shape: Sequence[int], dims: Sequence[Windows]) -> jax.Array:
    like = jax.ShapeDtypeStruct(tuple(shape), grad.dtype)
    return jax.linear_transpose(lambda x: sums(x, dims, by_tiles=True), like)(grad)[0]


@lowers("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def avg_pool_backward(
    grad_output: jax.Array,
    self: jax.Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> jax.Array:
    rank = 3 if len(kernel_size) == 3 else 2
    dims = windows(_trailing(self, rank), kernel_size, stride, padding, ceil_mode=ceil_mode)
    grad = widened(grad_output)
    divisor = jnp.asarray(_divisor(dims, count_include_pad, divisor_override), grad.dtype)
    return _sums_transposed(grad / divisor, self.shape, dims)


# Adaptive windows: window i of `out` covers [i * size // out, ceil((i + 1) * size / out)).


def _adaptive_bounds(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    i = np.arange(out)
    return i * size // max(out, 1), -(-(i + 1) * size // max(out, 1))


def _adaptive_positions(size: int, out: int) -> np.ndarray:
    """[longest window, out]; shorter windows read their last position again."""
    start, end = _adaptive_bounds(size, out)
    longest = int((end - start).max(initial=1))
    return np.minimum(start + np.arange(longest)[:, None], end - 1)


def _tiles(size: int, out: int) -> Windows:
    return Windows(size, out, size // out, size // out, 0)


def _adaptive_mean(x: jax.Array, outs: Sequence[int]) -> jax.Array:
    """Linear in `x`: one dimension after the other."""
    for i, out in enumerate(outs):
        axis = x.ndim - len(outs) + i
        size = x.shape[axis]
        x = jnp.moveaxis(x, axis, -1)
        if out and size % out == 0:
            x = sums(x, [_tiles(size, out)], by_tiles=True) / (size // out)
        elif out:
            bounds = zip(*_adaptive_bounds(size, out))
            x = jnp.stack([x[..., a:b].mean(-1) for a, b in bounds], -1)
        else:
            x = x[..., :0]
        x = jnp.moveaxis(x, -1, axis)
    return x


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_avg_pool(self: jax.Array, output_size: Sequence[int]) -> jax.Array:
    total, pairs = widened(self), [*zip(_trailing(self, len(output_size)), output_size)]
    if not forms.chosen().is_host or any(out == 0 or size % out for size, out in pairs):
        return _adaptive_mean(total, output_size)
    # As windows side by side: 16 x 64 x 28^2 to 7^2 takes 0.08 ms, one dim after the other 0.56.
    total = sums(total, [_tiles(size, out) for size, out in pairs])
    for size, out in pairs:
        total = total / (size // out)
    return total


def _adaptive_avg_backward(grad_output: jax.Array, self: jax.Array, rank: int) -> jax.Array:
    grad = widened(grad_output)
    outs = _trailing(grad, rank)
    like = jax.ShapeDtypeStruct(self.shape, grad.dtype)
    return jax.linear_transpose(lambda x: _adaptive_mean(x, outs), like)(grad)[0]


@lowers("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    return _adaptive_avg_backward(grad_output, self, 2)


@lowers("aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool3d_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    return _adaptive_avg_backward(grad_output, self, 3)


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(self: jax.Array, output_size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    sizes = _trailing(self, len(output_size))
    if math.prod(output_size) == 0:
        empty = jnp.zeros((*self.shape[: self.ndim - len(sizes)], *output_size), self.dtype)
        return empty, empty.astype(jnp.int64)
    positions = [_adaptive_positions(n, o) for n, o in zip(sizes, output_size)]
    return settled(max_with_indices(self, positions))


def _adaptive_dims(self: jax.Array, grad: jax.Array, rank: int) -> list[Windows] | None:
    """The windows, where they are all of one length."""
    pairs = list(zip(_trailing(self, rank), _trailing(grad, rank)))
    if any(out == 0 or size % out for size, out in pairs):
        return None
    return [_tiles(size, out) for size, out in pairs]


@lowers("aten.adaptive_max_pool2d_backward.default")
def adaptive_max_pool2d_backward(
    grad_output: jax.Array, self: jax.Array, indices: jax.Array
) -> jax.Array:
    dims = _adaptive_dims(self, grad_output, 2)
    return spread_by_indices(settled(widened(grad_output)), indices, _trailing(self, 2), dims)


@lowers("aten.adaptive_max_pool3d_backward.default")
def adaptive_max_pool3d_backward(
    grad_output: jax.Array, self: jax.Array, indices: jax.Array
) -> jax.Array:
    dims = _adaptive_dims(self, grad_output, 3)
    return spread_by_indices(settled(widened(grad_output)), indices, _trailing(self, 3), dims)


# Fractional windows: their starts come from random numbers, one per sample, channel and dimension.


def _fractional_starts(sample: jax.Array, size: int, out: int, kernel: int) -> jax.Array:
    if out == 1:
        return jnp.asarray([size - kernel])
    alpha = jnp.asarray((size - kernel) / (out - 1), sample.dtype)
    whole = width(size)
    steps = ((jnp.arange(out - 1) + sample) * alpha).astype(whole)
    starts = steps - (sample * alpha).astype(whole)
    return jnp.append(starts, jnp.asarray(size - kernel, whole))


def _fractional_max_pool(
    x: jax.Array, kernel: Sequence[int], outs: Sequence[int], samples: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`samples` [n, c, rank], in the order of the trailing dimensions."""
    rank = len(outs)
    sizes = _trailing(x, rank)

    def one(plane: jax.Array, sample: jax.Array) -> tuple[jax.Array, jax.Array]:
        positions = [
            _fractional_starts(sample[i], sizes[i], outs[i], kernel[i])
            + counted(kernel[i])[:, None]
            for i in range(rank)
        ]
        return max_with_indices(plane, positions)

    planes = x.reshape(-1, *sizes)
    values, indices = jax.vmap(one)(planes, samples.reshape(-1, rank)[: planes.shape[0]])
    shape = (*x.shape[: x.ndim - rank], *outs)
    return values.reshape(shape), indices.reshape(shape)


@lowers("aten.fractional_max_pool2d.default")
def fractional_max_pool2d(
    self: jax.Array,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    random_samples: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    # torch takes the first random number for the width and the second for the height.
    return _fractional_max_pool(self, kernel_size, output_size, random_samples[..., ::-1])


@lowers("aten.fractional_max_pool3d.default")
def fractional_max_pool3d(
    self: jax.Array,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    random_samples: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    return _fractional_max_pool(self, kernel_size, output_size, random_samples)


@lowers(
    "aten.fractional_max_pool2d_backward.default",
    "aten.fractional_max_pool3d_backward.default",
    shaped=True,
)
def fractional_max_pool_backward(
    grad_output: jax.Array,
    self: jax.Array,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: jax.Array,
) -> jax.Array:
    if not self.size:
        return jnp.zeros_like(self)
    sizes = _trailing(self, len(output_size))
    return spread_by_indices(widened(grad_output), indices, sizes, None)


# The inverse of max pooling.


def _unpool(x: jax.Array, indices: jax.Array, sizes: Sequence[int]) -> jax.Array:
    lead = x.shape[: x.ndim - len(sizes)]
    flat = x.reshape(math.prod(lead), -1)
    rows = counted(flat.shape[0])[:, None]
    zeros = jnp.zeros((flat.shape[0], math.prod(sizes)), x.dtype)
    places = bounded(indices.reshape(flat.shape), zeros.shape[1])
    return zeros.at[rows, places].set(flat).reshape(*lead, *sizes)


@lowers("aten.max_unpool2d.default")
def max_unpool2d(self: jax.Array, indices: jax.Array, output_size: Sequence[int]) -> jax.Array:
    return _unpool(self, indices, output_size)


@lowers("aten.max_unpool3d.default")
def max_unpool3d(
    self: jax.Array,
    indices: jax.Array,
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> jax.Array:
    return _unpool(self, indices, output_size)

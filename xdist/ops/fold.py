"""Windows laid out as columns and added back, and the shuffles between channels and pixels.

Adding windows back is a sum of shifts, or an overlap-add made of pads, reshapes and one sum: no
scatter, so it is fast on CPUs and gives the same bits on every run on GPUs.
"""

import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops.settled import settled
from torch_xdist.ops.table import lowers


def overlap_add(windows: jax.Array, step: int, length: int) -> jax.Array:
    """[..., n, w] -> [..., length]: element (i, j) is added at i * step + j."""
    *lead, count, width = windows.shape
    if not windows.size:
        return jnp.zeros((*lead, length), windows.dtype)
    blocks = -(-width // step)  # each window covers this many blocks of `step` elements
    none = [(0, 0)] * len(lead)
    x = jnp.pad(windows, [*none, (0, 0), (0, blocks * step - width)])
    x = jnp.swapaxes(x.reshape(*lead, count, blocks, step), -3, -2)
    # Block b of window i belongs at i + b. Rows one longer than they are read back as skew so.
    x = jnp.pad(x, [*none, (0, 0), (0, blocks), (0, 0)])
    x = x.reshape(*lead, blocks * (count + blocks), step)[..., :-blocks, :]
    x = x.reshape(*lead, blocks, count + blocks - 1, step).sum(-3)
    x = x.reshape(*lead, (count + blocks - 1) * step)
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * len(lead) + [_fit(x, length)])


def _fit(x: jax.Array, length: int) -> tuple[int, int, int]:
    return (0, length - x.shape[-1], 0)


@lowers("aten.unfold_backward.default")
def unfold_backward(
    grad_in: jax.Array, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> jax.Array:
    """`grad_in` [..., n at dim, ..., size] -> `input_sizes`."""
    if not input_sizes:
        return grad_in.reshape(())
    dim %= len(input_sizes)
    out = overlap_add(jnp.moveaxis(grad_in, dim, -2), step, input_sizes[dim])
    return jnp.moveaxis(out, -1, dim)


# Windows of more elements are looked up by index: 3 x 3 ones of 8 x 32 x 28^2 take 0.13 ms on a CPU
# as slices and 0.61 by index, 5 x 5 0.42 and 1.4, 7 x 7 0.9 and 2.6 but 0.9 s more to compile.
_MOST_SLICES = 25
# Of windows side by side so many sums of shifts are one kernel: 3 x 3 of 8 x 32 x 28^2 take 0.12 ms
# on a CPU, 2.1 by overlap-add; 7 x 7 of 4 x 16 x 56^2 2.2 and 11.4; 9 x 9 0.5 and 2.4. Strides put
# gaps between the numbers: 3 x 3 / 2 0.9 and 1.3, 2 x 2 / 2 0.3 and 0.2, 7 x 7 / 4 17 and 2.
_MOST_SHIFTS = 81


@lowers("aten.im2col.default")
def im2col(
    self: jax.Array,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    """[n, c, h, w] -> [n, c * kh * kw, windows], or both without n."""
    x = jnp.pad(self, [(0, 0)] * (self.ndim - 2) + [(p, p) for p in padding])
    places = []
    for i in (0, 1):
        count = _window_count(self.shape[i - 2], kernel_size[i], dilation[i], padding[i], stride[i])
        offsets = np.arange(kernel_size[i])[:, None] * dilation[i]
        places.append(offsets + np.arange(count)[None, :] * stride[i])
    is_few = math.prod(kernel_size) <= _MOST_SLICES
    x = (_by_slices if is_few else _by_index)(x, *places)  # [..., c, kh, kw, oh, ow]
    rows = self.shape[-3] * kernel_size[0] * kernel_size[1]
    return x.reshape(*self.shape[:-3], rows, places[0].shape[1] * places[1].shape[1])


def _by_index(x: jax.Array, rows: np.ndarray, columns: np.ndarray) -> jax.Array:
    """[..., h, w], [kh, oh], [kw, ow] -> [..., kh, kw, oh, ow]."""
    x = jnp.take(x, rows, axis=x.ndim - 2, mode="clip")
    return jnp.swapaxes(jnp.take(x, columns, axis=x.ndim - 1, mode="clip"), -3, -2)


def _by_slices(x: jax.Array, rows: np.ndarray, columns: np.ndarray) -> jax.Array:
    x = settled(x)
    parts = [
        jnp.stack([_taken(_taken(x, row, -2), column, -1) for column in columns], -3)
        for row in rows
    ]
    return jnp.stack(parts, -4)


def _taken(x: jax.Array, places: np.ndarray, dim: int) -> jax.Array:
    """The elements at places that are equally far from each other."""
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    return lax.slice_in_dim(x, int(places[0]), int(places[-1]) + 1, step, axis=dim % x.ndim)


@lowers("aten.col2im.default")
def col2im(
    self: jax.Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> jax.Array:
    """[n, c * kh * kw, windows] -> [n, c, h, w], or both without n."""
    (kh, kw), lead = kernel_size, self.shape[:-2]
    oh, ow = (
        _window_count(output_size[i], kernel_size[i], dilation[i], padding[i], stride[i])
        for i in (0, 1)
    )
    x = self.reshape(*lead, self.shape[-2] // (kh * kw), kh, kw, oh, ow)
    if set(stride) == {1} and kh * kw <= _MOST_SHIFTS:
        return _sum_of_shifts(x, output_size, dilation, padding)
    x = jnp.swapaxes(x, -3, -2)  # [..., c, kh, oh, kw, ow]
    x = _add_windows(x, output_size[1], dilation[1], padding[1], stride[1])
    x = jnp.moveaxis(x, -1, -3)  # [..., c, w, kh, oh]
    x = _add_windows(x, output_size[0], dilation[0], padding[0], stride[0])
    return jnp.swapaxes(x, -1, -2)


def _sum_of_shifts(
    x: jax.Array, size: Sequence[int], dilation: Sequence[int], padding: Sequence[int]
) -> jax.Array:
    """[..., kh, kw, oh, ow] -> [..., *size], in the order in which torch adds."""
    zero = jnp.zeros((), x.dtype)

    def shifted(row: int, column: int) -> jax.Array:
        part = x[..., row, column, :, :]
        config = [(0, 0, 0)] * part.ndim
        for dim, place in ((-2, row), (-1, column)):
            low = place * dilation[dim] - padding[dim]
            config[dim] = (low, size[dim] - low - part.shape[dim], 0)
        return lax.pad(part, zero, config)

    *_, kh, kw, _, _ = x.shape
    return functools.reduce(jnp.add, itertools.starmap(shifted, np.ndindex(kh, kw)))


def _window_count(size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _add_windows(x: jax.Array, size: int, dilation: int, padding: int, stride: int) -> jax.Array:
    """[..., kernel, windows] -> [..., size]."""
    x = jnp.swapaxes(x, -1, -2)
    gaps = [(0, 0, 0)] * (x.ndim - 1) + [(0, 0, dilation - 1)]
    x = lax.pad(x, jnp.zeros((), x.dtype), gaps)
    return overlap_add(x, stride, size + 2 * padding)[..., padding : padding + size]


@lowers("aten.pixel_shuffle.default")
def pixel_shuffle(self: jax.Array, upscale_factor: int) -> jax.Array:
    """[..., c * r * r, h, w] -> [..., c, h * r, w * r]."""
    r, (*lead, c, h, w) = upscale_factor, self.shape
    x = self.reshape(*lead, c // (r * r), r, r, h, w)
    n = len(lead)
    x = x.transpose(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*lead, c // (r * r), h * r, w * r)


@lowers("aten.pixel_unshuffle.default")
def pixel_unshuffle(self: jax.Array, downscale_factor: int) -> jax.Array:
    """[..., c, h * r, w * r] -> [..., c * r * r, h, w]."""
    r, (*lead, c, h, w) = downscale_factor, self.shape
    x = self.reshape(*lead, c, h // r, r, w // r, r)
    n = len(lead)
    x = x.transpose(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return x.reshape(*lead, c * r * r, h // r, w // r)


@lowers("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(self: jax.Array, groups: int) -> jax.Array:
    """[n, c, ...]: channel (g, i) moves to (i, g)."""
    n, c, *rest = self.shape
    return jnp.swapaxes(self.reshape(n, groups, c // groups, *rest), 1, 2).reshape(self.shape)

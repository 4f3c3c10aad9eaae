"""Sampling of images at given places (`grid_sample`), in 2 and 3 dimensions.

Images are [n, c, *sizes], grids [n, *out, rank] with the last dimension's coordinate first, in
[-1, 1]. The gradients are those of the forward functions, taken by JAX.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from torch_xdist.ops.index import read_rows
from torch_xdist.ops.operands import widened
from torch_xdist.ops.positions import width
from torch_xdist.ops.settled import settled
from torch_xdist.ops.table import lowers

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _unnormalised(place: jax.Array, size: int, align: bool) -> jax.Array:
    """From [-1, 1] to positions of the input."""
    if align:
        return (place + 1) / 2 * (size - 1)
    return ((place + 1) * size - 1) / 2


def _clipped(place: jax.Array, size: int) -> jax.Array:
    # The gradient at the border itself is 0, which jnp.clip would halve.
    return jnp.where(place <= 0, 0, jnp.where(place >= size - 1, size - 1, place))


def _reflected(place: jax.Array, size: int, align: bool) -> jax.Array:
    """Mirrored at the centres of the outermost pixels, or at their outer edges."""
    low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
    if span <= 0:
        return jnp.zeros_like(place)
    place = place - low
    distance = jnp.where(place < 0, -place, place)
    turns = jnp.floor(jax.lax.stop_gradient(distance) / span)
    extra = distance - turns * span
    return jnp.where(turns % 2 == 0, extra, span - extra) + low


def _padded(place: jax.Array, size: int, padding: int, align: bool) -> jax.Array:
    if padding == _REFLECTION:
        place = _reflected(place, size, align)
    return place if padding == _ZEROS else _clipped(place, size)


class _Pixels(NamedTuple):
    """Images whose pixels are rows, which XLA reads and adds up fastest.

    Attributes:
        rows: [n * pixels of one, c].
        sizes: of one image.
    """

    rows: jax.Array
    sizes: tuple[int, ...]


def _pixels_of(images: jax.Array) -> _Pixels:
    channels, sizes = images.shape[1], images.shape[2:]
    return _Pixels(jnp.moveaxis(images, 1, -1).reshape(-1, channels), sizes)


def _at(pixels: _Pixels, places: Sequence[jax.Array]) -> jax.Array:
    """[taps, n, *out, c]: the pixels at whole `places` [taps, n, *out]; 0 outside."""
    rows, sizes = pixels
    integer = width(rows.shape[0])
    images = jnp.arange(rows.shape[0] // math.prod(sizes), dtype=integer)
    inside, flat = jnp.asarray(True), images.reshape(-1, *(1,) * len(sizes))
    for place, size in zip(places, sizes):
        inside = inside & (place >= 0) & (place <= size - 1)
        # A nan or a huge coordinate is outside; it must not be cast.
        whole = jnp.where((place >= 0) & (place <= size - 1), place, 0).astype(integer)
        flat = flat * size + whole
    inside, flat = settled((inside, flat))
    return jnp.where(inside[..., None], read_rows(rows, flat, 0), 0)


def _linear(pixels: _Pixels, places: Sequence[jax.Array]) -> jax.Array:
    floors = [jnp.floor(jax.lax.stop_gradient(place)) for place in places]
    weights, corners = [], []
    for corner in itertools.product((0, 1), repeat=len(places)):
        weight = jnp.ones((), pixels.rows.dtype)
        for high, place, floor in zip(corner, places, floors):
            weight = weight * (place - floor if high else floor + 1 - place)
        weights.append(weight)
        corners.append([f + high for f, high in zip(floors, corner)])
    return _weighted(pixels, corners, weights)


def _weighted(
    pixels: _Pixels, taps: Sequence[Sequence[jax.Array]], weights: Sequence[jax.Array]
) -> jax.Array:
    """The weighted sum of the pixels at several places, read by one gather."""
    found = _at(pixels, [jnp.stack(by_dim) for by_dim in zip(*taps)])
    parts = [one * weight[..., None] for one, weight in zip(found, settled(jnp.stack(weights)))]
    return functools.reduce(operator.add, parts)


def _nearest(pixels: _Pixels, places: Sequence[jax.Array]) -> jax.Array:
    # Halves go to the even neighbour, as in torch.
    return _at(pixels, [jnp.round(jax.lax.stop_gradient(place))[None] for place in places])[0]


def _cubic_weights(t: jax.Array) -> list[jax.Array]:
    """Keys' kernel, a = -0.75, at the four neighbours of a place `t` behind the second."""
    a = -0.75

    def near(x: jax.Array) -> jax.Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: jax.Array) -> jax.Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic(
    pixels: _Pixels, places: Sequence[jax.Array], pad: Callable[[jax.Array, int], jax.Array]
) -> jax.Array:
    floors = [jnp.floor(jax.lax.stop_gradient(place)) for place in places]
    rows, columns = (_cubic_weights(place - floor) for place, floor in zip(places, floors))
    taps, weights = [], []
    for i, j in itertools.product(range(4), repeat=2):
        y = pad(floors[0] + (i - 1), pixels.sizes[0])
        x = pad(floors[1] + (j - 1), pixels.sizes[1])
        # Reflection and clipping of whole places give whole places.
        taps.append([jnp.round(y), jnp.round(x)])
        weights.append(rows[i] * columns[j])
    return _weighted(pixels, taps, weights)


def _sample(input: jax.Array, grid: jax.Array, mode: int, padding: int, align: bool) -> jax.Array:
    sizes = input.shape[2:]

    def pad(place: jax.Array, size: int) -> jax.Array:
        return _padded(place, size, padding, align)

    if math.prod(input.shape) == 0 or math.prod(grid.shape) == 0:
        return jnp.zeros((*input.shape[:2], *grid.shape[1:-1]), input.dtype)
    pixels, places = _pixels_of(widened(input)), widened(grid)
    by_dim = [places[..., -1 - i] for i in range(len(sizes))]
    found = [_unnormalised(p, n, align) for p, n in zip(by_dim, sizes)]
    if mode == _BICUBIC:
        return jnp.moveaxis(_cubic(pixels, found, pad), -1, 1)
    found = [pad(p, n) for p, n in zip(found, sizes)]
    sampled = (_linear if mode == _BILINEAR else _nearest)(pixels, found)
    return jnp.moveaxis(sampled, -1, 1)


@lowers("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> jax.Array:
    return _sample(input, grid, interpolation_mode, padding_mode, align_corners)


@lowers("aten.grid_sampler_2d_backward.default", "aten.grid_sampler_3d_backward.default")
def grid_sampler_backward(
    grad_output: jax.Array,
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array | None]:
    image, places = widened(input), widened(grid)

    def sampled(image: jax.Array, places: jax.Array) -> jax.Array:
        return _sample(image, places, interpolation_mode, padding_mode, align_corners)

    value, pull = jax.vjp(sampled, image, places)
    grads = pull(grad_output.astype(value.dtype))
    return grads[0] if output_mask[0] else None, grads[1] if output_mask[1] else None

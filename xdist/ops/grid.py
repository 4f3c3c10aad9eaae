"""Sampling of images at given places (`grid_sample`), in 2 and 3 dimensions.

Images are [n, c, *sizes], grids [n, *out, rank] with the last dimension's coordinate first, in
[-1, 1]. The gradients are those of the forward functions, taken by JAX.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import widened
from torch_xdist.ops.positions import width
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


def _at(image: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    """[c, *out]: the pixels of `image` [c, *sizes] at whole `places`; 0 outside."""
    sizes = image.shape[1:]
    integer = width(math.prod(sizes))
    inside, flat = jnp.asarray(True), jnp.zeros((), integer)
    for place, size in zip(places, sizes):
        inside = inside & (place >= 0) & (place <= size - 1)
        # A nan or a huge coordinate is outside; it must not be cast.
        whole = jnp.where((place >= 0) & (place <= size - 1), place, 0).astype(integer)
        flat = flat * size + whole
    pixels = image.reshape(image.shape[0], -1)[:, flat]
    return jnp.where(inside, pixels, 0)


def _linear(image: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    floors = [jnp.floor(jax.lax.stop_gradient(place)) for place in places]
    weights, corners = [], []
    for corner in itertools.product((0, 1), repeat=len(places)):
        weight = jnp.ones((), image.dtype)
        for high, place, floor in zip(corner, places, floors):
            weight = weight * (place - floor if high else floor + 1 - place)
        weights.append(weight)
        corners.append([f + high for f, high in zip(floors, corner)])
    return _weighted(image, corners, weights)


def _weighted(
    image: jax.Array, taps: Sequence[Sequence[jax.Array]], weights: Sequence[jax.Array]
) -> jax.Array:
    """The weighted sum of the pixels at several places, read by one gather."""
    pixels = _at(image, [jnp.stack(by_dim) for by_dim in zip(*taps)])
    return (pixels * jnp.stack(weights)).sum(1)


def _nearest(image: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    # Halves go to the even neighbour, as in torch.
    return _at(image, [jnp.round(jax.lax.stop_gradient(place)) for place in places])


def _cubic_weights(t: jax.Array) -> list[jax.Array]:
    """Keys' kernel, a = -0.75, at the four neighbours of a place `t` behind the second."""
    a = -0.75

    def near(x: jax.Array) -> jax.Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: jax.Array) -> jax.Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic(
    image: jax.Array, places: Sequence[jax.Array], pad: Callable[[jax.Array, int], jax.Array]
) -> jax.Array:
    floors = [jnp.floor(jax.lax.stop_gradient(place)) for place in places]
    rows, columns = (_cubic_weights(place - floor) for place, floor in zip(places, floors))
    taps, weights = [], []
    for i, j in itertools.product(range(4), repeat=2):
        y = pad(floors[0] + (i - 1), image.shape[1])
        x = pad(floors[1] + (j - 1), image.shape[2])
        # Reflection and clipping of whole places give whole places.
        taps.append([jnp.round(y), jnp.round(x)])
        weights.append(rows[i] * columns[j])
    return _weighted(image, taps, weights)


def _sample(input: jax.Array, grid: jax.Array, mode: int, padding: int, align: bool) -> jax.Array:
    sizes = input.shape[2:]

    def pad(place: jax.Array, size: int) -> jax.Array:
        return _padded(place, size, padding, align)

    def one(image: jax.Array, places: jax.Array) -> jax.Array:
        by_dim = [places[..., -1 - i] for i in range(len(sizes))]
        found = [_unnormalised(p, n, align) for p, n in zip(by_dim, sizes)]
        if mode == _BICUBIC:
            return _cubic(image, found, pad)
        found = [pad(p, n) for p, n in zip(found, sizes)]
        return _linear(image, found) if mode == _BILINEAR else _nearest(image, found)

    if math.prod(input.shape) == 0 or math.prod(grid.shape) == 0:
        return jnp.zeros((*input.shape[:2], *grid.shape[1:-1]), input.dtype)
    return jax.vmap(one)(widened(input), widened(grid))


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

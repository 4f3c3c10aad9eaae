"""Resampling of images to another size: nearest, linear, cubic, and their antialiased forms.

Every mode is a table per dimension: which positions of the input each output position reads, and
with which weights. The tables are computed in torch's arithmetic (float32, unless the images are
float64 or bytes) while the program is built. Backward is a product with the table as a matrix,
because adding up single elements is a serial loop on the CPU.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from torch_xdist.ops.table import lowers
from torch_xdist.ops.windows import read


@dataclass(frozen=True, slots=True)
class Table:
    """Along one dimension: `positions` and `weights`, both [taps, out]."""

    positions: np.ndarray
    weights: np.ndarray

    def matrix(self, size: int) -> np.ndarray:
        """[out, size]."""
        matrix = np.zeros((self.positions.shape[1], size))
        columns = np.arange(self.positions.shape[1])
        for taken, weight in zip(self.positions, self.weights):
            np.add.at(matrix, (columns, taken), weight)
        return matrix


# (size, out, align_corners, scale, float type) -> Table
_Mode = Callable[[int, int, bool, float | None, type], Table]


def _step(size: int, out: int, align: bool, scale: float | None, number: type) -> np.floating:
    """How far apart in the input two neighbours of the output are."""
    if align:
        return number(size - 1) / number(out - 1) if out > 1 else number(0)
    if scale is not None and scale > 0:
        return number(1.0 / scale)
    return number(size) / number(out)


def _nearest(shift: float) -> _Mode:
    def table(size: int, out: int, align: bool, scale: float | None, number: type) -> Table:
        # torch takes float32 here whatever the images are.
        step = _step(size, out, False, scale, np.float32)
        places: np.ndarray = (np.arange(out, dtype=np.float32) + np.float32(shift)) * step
        taken = np.minimum(np.floor(places).astype(np.int64), size - 1)
        return Table(taken[None], np.ones((1, out)))

    return table


def _source(
    size: int, out: int, align: bool, scale: float | None, number: type
) -> tuple[np.ndarray, np.floating]:
    """Where in the input each output position lies."""
    step = _step(size, out, align, scale, number)
    places: np.ndarray = np.arange(out).astype(number)
    half = number(0.5)
    return (places * step if align else (places + half) * step - half), step


def _linear(size: int, out: int, align: bool, scale: float | None, number: type) -> Table:
    if size == out:
        return Table(np.arange(out)[None], np.ones((1, out)))
    places = np.maximum(_source(size, out, align, scale, number)[0], 0)
    low = np.minimum(places.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = np.clip(places - low.astype(number), 0, 1)
    return Table(np.stack([low, high]), np.stack([1 - weight, weight]))


def _cubic_weights(t: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic kernel at distance `t` >= 0."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t < 1, near, np.where(t < 2, far, 0))


def _cubic(size: int, out: int, align: bool, scale: float | None, number: type) -> Table:
    places, _ = _source(size, out, align, scale, number)
    floor = np.minimum(np.floor(places), size - 1)
    part = np.minimum(places - floor, 1)
    offsets = np.arange(-1, 3)[:, None]
    positions = np.clip(floor.astype(np.int64) + offsets, 0, size - 1)
    return Table(positions, _cubic_weights(np.abs(part - offsets.astype(number)), -0.75))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _smooth(kernel: Callable[[np.ndarray], np.ndarray], radius: int) -> _Mode:
    """An antialiased mode: the kernel grows with the step, so that nothing is skipped."""

    def table(size: int, out: int, align: bool, scale: float | None, number: type) -> Table:
        step = _step(size, out, align, scale, number)
        grown = max(step, number(1))
        support = number(radius) * grown
        centre = step * (np.arange(out).astype(number) + number(0.5))
        first = np.maximum((centre - support + number(0.5)).astype(np.int64), 0)
        end = np.minimum((centre + support + number(0.5)).astype(np.int64), size)
        taps = np.arange(int((end - first).max(initial=1)))[:, None]
        weights = kernel((taps + first - centre + number(0.5)) * (number(1) / grown))
        weights = np.where(first + taps < end, weights, 0)
        total = weights.sum(0)
        weights = weights / np.where(total == 0, 1, total)
        return Table(np.minimum(first + taps, size - 1), weights)

    return table


def _wide(x: jax.Array) -> jax.Array:
    """float32 for half precision and integers."""
    return x if x.dtype in (jnp.float32, jnp.float64) else x.astype(jnp.float32)


def _number(dtype: jnp.dtype) -> type:
    return np.float64 if dtype == jnp.float64 else np.float32


def _resample(
    x: jax.Array, mode: _Mode, outs: Sequence[int], align: bool, scales: Sequence[float | None]
) -> jax.Array:
    sizes = x.shape[2:]
    if x.dtype == jnp.uint8 and len(sizes) == 2:
        number: type = np.float64
    else:
        number = _number(x.dtype)
    tables = [
        mode(size, out, align, scale, number) for size, out, scale in zip(sizes, outs, scales)
    ]
    if all(len(table.weights) == 1 for table in tables):
        for axis, table in enumerate(tables, 2):
            x = read(x, axis, table.positions[0])
        return x
    if x.dtype == jnp.uint8 and len(sizes) == 2:
        return _resample_bytes(x, tables)
    y = _wide(x)
    for axis, table in enumerate(tables, 2):
        column = (-1, *(1,) * (x.ndim - 1 - axis))
        weights = [jnp.asarray(w, y.dtype).reshape(column) for w in table.weights]
        y = sum(read(y, axis, p) * w for p, w in zip(table.positions, weights))
    return y if jnp.issubdtype(x.dtype, jnp.floating) else _to_integer(y, x.dtype)


def _resample_bytes(x: jax.Array, tables: Sequence[Table]) -> jax.Array:
    """`x` [n, c, h, w] resampled along its rows, and the bytes this gives along its columns.

    As CPU torch and Pillow do it: sums of 16-bit weights, each pass rounded to bytes.
    """
    y = x.astype(jnp.int32)
    for axis in (3, 2):
        table = tables[axis - 2]
        if table.positions.shape[1] == x.shape[axis]:
            continue
        weights, bits = _whole_weights(table)
        column = (-1, *(1,) * (x.ndim - 1 - axis))
        shares = [
            read(y, axis, p) * jnp.asarray(w, jnp.int32).reshape(column)
            for p, w in zip(table.positions, weights)
        ]
        y = jnp.clip((sum(shares) + (1 << bits - 1)) >> bits, 0, 255)
    return y.astype(x.dtype)


def _whole_weights(table: Table) -> tuple[np.ndarray, int]:
    """The weights of a table times 2^bits as 16-bit integers [taps, out], and bits.

    Taps that read one position are added up before they are rounded; the largest sum on the way
    says how many bits there are.
    """
    totals = np.zeros(table.weights.shape)
    columns = np.arange(totals.shape[1])
    home, most = np.zeros_like(columns), 0.0
    for tap, (taken, weight) in enumerate(zip(table.positions, table.weights)):
        before = table.positions[max(tap - 1, 0)]
        home = np.where(taken == before, home, tap)
        totals[home, columns] += weight
        most = max(most, float(totals[home, columns].max()))
    bits = next((b for b in range(22) if int(0.5 + most * 2.0 ** (b + 1)) >= 1 << 15), 22)
    scaled = totals * 2.0**bits
    return np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32), bits


def _to_integer(y: jax.Array, dtype: jnp.dtype) -> jax.Array:
    info = jnp.iinfo(dtype)
    return jnp.clip(jnp.round(y), info.min, info.max).astype(dtype)


def _resample_backward(
    grad: jax.Array,
    mode: _Mode,
    outs: Sequence[int],
    sizes: Sequence[int],
    align: bool,
    scales: Sequence[float | None],
) -> jax.Array:
    y = _wide(grad)
    for axis, (size, out, scale) in enumerate(zip(sizes, outs, scales), 2):
        table = mode(size, out, align, scale, _number(grad.dtype))
        # Exact also where matmuls of a device default to less than float32.
        y = jax.lax.dot_general(
            jnp.moveaxis(y, axis, -1),
            jnp.asarray(table.matrix(size), y.dtype),
            (((grad.ndim - 1,), (0,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
        )
        y = jnp.moveaxis(y, -1, axis)
    return y


def _enter(name: str, mode: _Mode, rank: int, *, takes_align: bool) -> None:
    """Enter an operator and its gradient under torch's two signatures."""

    def split(rest: Sequence[float | None]) -> tuple[bool, list[float | None]]:
        align, scales = (bool(rest[0]), rest[1:]) if takes_align else (False, rest)
        return align, [*scales, *[None] * (rank - len(scales))]

    @lowers(f"aten.{name}.default")
    def forward(
        self: jax.Array, output_size: Sequence[int], *rest: float | None, **named: float | None
    ) -> jax.Array:
        align, scales = split((*rest, *named.values()))
        if math.prod(self.shape) == 0:
            return jnp.zeros((*self.shape[:2], *output_size), self.dtype)
        return _resample(self, mode, output_size, align, scales)

    @lowers(f"aten.{name}_backward.default")
    def backward(
        grad_output: jax.Array,
        output_size: Sequence[int],
        input_size: Sequence[int],
        *rest: float | None,
        **named: float | None,
    ) -> jax.Array:
        align, scales = split((*rest, *named.values()))
        if math.prod(input_size) == 0:
            return jnp.zeros(tuple(input_size), grad_output.dtype)
        return _resample_backward(grad_output, mode, output_size, input_size[2:], align, scales)


for _rank in (1, 2, 3):
    _enter(f"upsample_nearest{_rank}d", _nearest(0.0), _rank, takes_align=False)
    _enter(f"_upsample_nearest_exact{_rank}d", _nearest(0.5), _rank, takes_align=False)
_enter("upsample_linear1d", _linear, 1, takes_align=True)
_enter("upsample_bilinear2d", _linear, 2, takes_align=True)
_enter("upsample_trilinear3d", _linear, 3, takes_align=True)
_enter("upsample_bicubic2d", _cubic, 2, takes_align=True)
_enter("_upsample_bilinear2d_aa", _smooth(_triangle, 1), 2, takes_align=True)
_enter(
    "_upsample_bicubic2d_aa",
    _smooth(lambda x: _cubic_weights(np.abs(x), -0.5), 2),
    2,
    takes_align=True,
)
_enter("_upsample_lanczos2d_aa", _smooth(_lanczos, 3), 2, takes_align=True)

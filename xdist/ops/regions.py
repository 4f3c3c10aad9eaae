"""Regions of images, as torchvision's detectors use them: `roi_align`, and what `nms` keeps.

torchvision is no dependency: the rows wait under the names its operators have once it is imported.
A region is [5]: the number of its image, then x1, y1, x2, y2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops.operands import widened
from torch_xdist.ops.table import lowers


class _Side(NamedTuple):
    """Where a region is sampled along one side of the image.

    Attributes:
        at: [k, bins, samples], positions in pixels.
        counted: of the same shape, which of them there are.
        size: of the image.
    """

    at: jax.Array
    counted: jax.Array
    size: int

    def weights(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """(pixel below, pixel above, share of the pixel below, share of the one above)."""
        # Samples that lie more than a pixel outside of the image count as 0.
        inside = self.counted & (self.at >= -1) & (self.at <= self.size)
        at = jnp.maximum(self.at, 0)
        low = jnp.minimum(at.astype(jnp.int32), self.size - 1)
        high = jnp.minimum(low + 1, self.size - 1)
        # At the last pixel there is none above, so its own value counts.
        above = jnp.where(low == self.size - 1, 0, at - low)
        return low, high, jnp.where(inside, 1 - above, 0), jnp.where(inside, above, 0)

    def matrix(self) -> jax.Array:
        """[k, bins, size]: the share of each pixel in the sum of the samples of each bin."""
        low, high, below, above = self.weights()
        pixels = jnp.arange(self.size)
        shares = jnp.where(low[..., None] == pixels, below[..., None], 0)
        shares += jnp.where(high[..., None] == pixels, above[..., None], 0)
        return shares.sum(axis=2)


def _side(
    low: jax.Array, high: jax.Array, size: int, bins: int, samples: int, aligned: bool
) -> tuple[_Side, jax.Array]:
    """One side of the regions [k], and how many samples a bin has along it [k]."""
    length = high - low if aligned else jnp.maximum(high - low, 1)
    bin_size = length / bins
    if samples > 0:
        count, most = jnp.full(low.shape, samples), samples
    else:
        # As many samples as a bin has pixels, which are at most those of the image.
        count, most = jnp.ceil(bin_size).astype(jnp.int32), size
        count = jnp.clip(count, 0, most)
    number = jnp.arange(most)
    step = (bin_size / jnp.maximum(count, 1))[:, None, None]
    start = low[:, None, None] + jnp.arange(bins)[:, None] * bin_size[:, None, None]
    at = start + (number + 0.5) * step
    counted = jnp.broadcast_to(number < count[:, None, None], at.shape)
    return _Side(at, counted, size), count


def _align(
    images: jax.Array,
    rois: jax.Array,
    spatial_scale: float,
    bins: tuple[int, int],
    sampling_ratio: int,
    aligned: bool,
) -> jax.Array:
    """[n, c, h, w] and [k, 5]: [k, c, *bins]. It is linear in the images."""
    rois = rois.astype(images.dtype)
    # `aligned` takes a pixel's value to be that of its middle.
    edges = rois[:, 1:] * spatial_scale - (0.5 if aligned else 0)
    height, width = images.shape[2:]
    rows, row_count = _side(edges[:, 1], edges[:, 3], height, bins[0], sampling_ratio, aligned)
    columns, column_count = _side(edges[:, 0], edges[:, 2], width, bins[1], sampling_ratio, aligned)
    image = rois[:, 0].astype(jnp.int32)
    sums = _sampled if sampling_ratio > 0 else _by_matrices
    total = jnp.maximum(row_count * column_count, 1)[:, None, None, None]
    return sums(images, image, rows, columns) / total


def _sampled(images: jax.Array, image: jax.Array, rows: _Side, columns: _Side) -> jax.Array:
    """The sums of the samples of each bin, four pixels read for each sample."""
    channels_last = images.transpose(0, 2, 3, 1)
    found: jax.Array | float = 0.0
    row_low, row_high, *row_shares = rows.weights()
    column_low, column_high, *column_shares = columns.weights()
    for y, y_share in zip((row_low, row_high), row_shares):
        for x, x_share in zip((column_low, column_high), column_shares):
            at = image[:, None, None, None, None], y[..., None, None], x[:, None, None]
            pixels = channels_last.at[at].get(mode="promise_in_bounds")
            found += jnp.einsum("kpiqjc,kpi,kqj->kcpq", pixels, y_share, x_share)
    assert isinstance(found, jax.Array)
    return found


def _by_matrices(images: jax.Array, image: jax.Array, rows: _Side, columns: _Side) -> jax.Array:
    """The same, region by region, as products: for bins of which only values tell the samples."""

    def of_region(region: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        number, of_rows, of_columns = region
        return jnp.einsum("ph,chw,qw->cpq", of_rows, images[number], of_columns)

    return lax.map(of_region, (image, rows.matrix(), columns.matrix()))


@lowers("torchvision.roi_align.default", shaped=True)
def roi_align(
    input: jax.Array,
    rois: jax.Array,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> jax.Array:
    """[n, c, h, w] and regions [k, 5]: [k, c, pooled_height, pooled_width]."""
    bins = pooled_height, pooled_width
    found = _align(widened(input), widened(rois), spatial_scale, bins, sampling_ratio, aligned)
    return found.astype(input.dtype)


@lowers("torchvision._roi_align_backward.default", shaped=True)
def roi_align_backward(
    grad: jax.Array,
    rois: jax.Array,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> jax.Array:
    bins, wide_grad = (pooled_height, pooled_width), widened(grad)

    def align(images: jax.Array) -> jax.Array:
        return _align(images, widened(rois), spatial_scale, bins, sampling_ratio, aligned)

    images = jnp.zeros((batch_size, channels, height, width), wide_grad.dtype)
    _, pull = jax.vjp(align, images)
    return pull(wide_grad)[0].astype(grad.dtype)


def kept_boxes(
    dets: jax.Array, scores: jax.Array, *, iou_threshold: float
) -> tuple[jax.Array, jax.Array]:
    """Which boxes stay when each drops the lower scored ones that overlap it.

    Args:
        dets: [n, 4] as x1, y1, x2, y2.
        scores: [n].
        iou_threshold: of intersection over union, above which a box is dropped.

    Returns (their indices by falling score [n], filled up with 0; how many they are []).
    """
    order = jnp.argsort(-scores, stable=True)
    low, high = dets[order, :2], dets[order, 2:]
    area = (high - low).prod(axis=1)
    places = jnp.arange(len(order))

    def drop(place: jax.Array, alive: jax.Array) -> jax.Array:
        """Box `place` is settled: it drops later ones, if it is alive itself."""
        corners = jnp.minimum(high, high[place]) - jnp.maximum(low, low[place])
        shared = jnp.maximum(corners, 0).prod(axis=1)
        # Not multiplied out: boxes without area give 0 / 0, which drops nothing.
        overlaps = shared / (area[place] + area - shared) > iou_threshold
        return alive & ~(alive[place] & overlaps & (places > place))

    alive = lax.fori_loop(0, len(order), drop, jnp.ones(order.shape, bool))
    kept = jnp.nonzero(alive, size=len(order), fill_value=0)[0]
    return order[kept].astype(jnp.int64), alive.sum(dtype=jnp.int64)

"""torchvision's operators in plain torch on the CPU, entered where torchvision is not installed.

Written from what its documentation says they compute, sample by sample, so that they have nothing
in common with the lowerings.
"""

import math
from typing import Any

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width,"
    " int sampling_ratio, bool aligned) -> Tensor",
)
_keep: list[Any] = []


def enter() -> None:
    """Make `torch.ops.torchvision` answer, by torchvision's own operators where they exist."""
    if _keep or hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    _keep.append(library)
    for schema, kernel in zip(SCHEMAS, (nms, roi_align, roi_align_backward)):
        library.define(schema)
        library.impl(schema.split("(")[0], kernel, "CPU")


def nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    order = scores.argsort(descending=True, stable=True).tolist()
    kept: list[int] = []
    for box in order:
        if all(_overlap(dets[box].tolist(), dets[k].tolist()) <= iou_threshold for k in kept):
            kept.append(box)
    return torch.tensor(kept, dtype=torch.int64)


def _overlap(a: list[float], b: list[float]) -> float:
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    high = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    return wide * high / ((sum(areas) - wide * high) or math.inf)


def roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    """Each bin is the mean of its samples, each sample is bilinear between four pixels."""
    bins, shift = (pooled_height, pooled_width), 0.5 if aligned else 0.0
    regions = []
    for number, x1, y1, x2, y2 in rois.tolist():
        image = input[int(number)]
        starts = (y1 * spatial_scale - shift, x1 * spatial_scale - shift)
        sizes = [(y2 - y1) * spatial_scale, (x2 - x1) * spatial_scale]
        steps = [(size if aligned else max(size, 1.0)) / n for size, n in zip(sizes, bins)]
        samples = [sampling_ratio if sampling_ratio > 0 else math.ceil(step) for step in steps]
        rows = []
        for p in range(bins[0]):
            for q in range(bins[1]):
                total = torch.zeros_like(image[:, 0, 0])
                for i in range(samples[0]):
                    for j in range(samples[1]):
                        y = starts[0] + (p + (i + 0.5) / samples[0]) * steps[0]
                        x = starts[1] + (q + (j + 0.5) / samples[1]) * steps[1]
                        total = total + _bilinear(image, y, x)
                rows.append(total / max(samples[0] * samples[1], 1))
        regions.append(torch.stack(rows, dim=-1).reshape(-1, *bins))
    return torch.stack(regions)


def _bilinear(image: torch.Tensor, y: float, x: float) -> torch.Tensor:
    _, height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return torch.zeros_like(image[:, 0, 0])
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    above = image[:, top, left] * (1 - (x - left)) + image[:, top, right] * (x - left)
    below = image[:, bottom, left] * (1 - (x - left)) + image[:, bottom, right] * (x - left)
    return above * (1 - (y - top)) + below * (y - top)


def roi_align_backward(
    grad: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    images = torch.zeros(batch_size, channels, height, width, dtype=grad.dtype)
    with torch.enable_grad():
        images.requires_grad_()
        bins = pooled_height, pooled_width
        pooled = roi_align(images, rois, spatial_scale, *bins, sampling_ratio, aligned)
    return torch.autograd.grad(pooled, images, grad)[0]

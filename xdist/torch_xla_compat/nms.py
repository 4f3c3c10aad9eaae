"""Non-maximum suppression with static shapes, as torch_xla 1.x had it."""

import torch


def nms(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    score_threshold: float,
    iou_threshold: float,
    output_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The boxes kept when each one drops the lower scored ones that overlap it.

    Args:
        boxes: [n, 4] as x1, y1, x2, y2.
        scores: [n].
        score_threshold: boxes below are dropped at once.
        iou_threshold: overlap (intersection over union) above which the lower scored box goes.
        output_size: how many indices are returned.

    Returns (indices [output_size] by falling score, padded with 0; how many of them count, []).
    """
    order = scores.argsort(descending=True)
    ordered = boxes[order]
    overlaps = _overlaps(ordered) > iou_threshold
    alive = scores[order] >= score_threshold
    count = boxes.size(0)
    places = torch.arange(count, device=boxes.device)
    for place in range(count):
        # Box `place` is final now: it drops the later ones it overlaps, if it is alive itself.
        later = places > place
        alive = alive & ~(alive[place] & overlaps[place] & later)
    rank = torch.where(alive, places, places + count).argsort()
    kept = alive.sum().clamp(max=output_size)
    slots = torch.arange(output_size, device=boxes.device)
    chosen = order[rank[slots.clamp(max=count - 1)]]
    return torch.where(slots < kept, chosen, torch.zeros_like(chosen)), kept


def _overlaps(boxes: torch.Tensor) -> torch.Tensor:
    """[n, n] intersection over union."""
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=-1)
    return shared / (area[:, None] + area[None, :] - shared).clamp(min=1e-12)

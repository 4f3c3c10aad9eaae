"""torchvision's operators on the device equal their definitions, sample by sample."""

import pytest
import region_oracles
import torch
from devices_agree import served_by_cpu

from torch_xdist.core.run import cuts

region_oracles.enter()
VISION = torch.ops.torchvision


def regions() -> torch.Tensor:
    """Inside, across the edge, outside, without area, larger than the image."""
    corners = [[1, 2, 6, 8], [-3, -2, 4, 3], [30, 30, 40, 40], [2, 2, 2, 2], [-5, 0, 40, 12]]
    images = torch.tensor([0.0, 1, 1, 0, 1])[:, None]
    return torch.cat([images, torch.tensor(corners) + 0.25], dim=1)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling_ratio", [2, -1], ids=["two-samples", "as-many-as-pixels"])
def test_roi_align_and_its_gradient_equal_the_definition(sampling_ratio, aligned) -> None:
    torch.manual_seed(0)
    images, grad = torch.randn(2, 3, 8, 9), torch.randn(5, 3, 2, 3)
    tail = (2, 3, *images.shape, sampling_ratio, aligned)

    def there_and_back(images, rois, grad):
        # Regions have no gradient, as there.
        with torch.no_grad():
            out = VISION.roi_align(images, rois, 0.5, 2, 3, sampling_ratio, aligned)
            return out, VISION._roi_align_backward(grad, rois, 0.5, *tail)

    assert served_by_cpu(there_and_back, images, regions(), grad) == []


@pytest.mark.parametrize("threshold", [0.2, 0.7])
def test_nms_keeps_the_boxes_the_definition_keeps_and_reads_their_number_alone(threshold) -> None:
    torch.manual_seed(1)
    low = torch.rand(40, 2) * 10
    boxes, scores = torch.cat([low, low + torch.rand(40, 2) * 6], dim=1), torch.rand(40)
    boxes[3], scores[5], boxes[7, 2:] = boxes[4], scores[6], boxes[7, :2]
    before = cuts.REASONS.copy()

    def keep(boxes, scores):
        return VISION.nms(boxes.detach(), scores.detach(), threshold)

    assert served_by_cpu(keep, boxes, scores) == []
    # The number of boxes, then the test's own look at them.
    assert cuts.REASONS - before == {"read": 2}


def test_nms_of_no_boxes_keeps_none() -> None:
    boxes, scores = torch.zeros(0, 4, device="xla"), torch.zeros(0, device="xla")
    assert VISION.nms(boxes, scores, 0.5).shape == (0,)

"""`x[mask] = parameter` while gradients are recorded: one program, whatever the mask selects."""

import pytest
import torch

import torch_xla
from torch_xdist import metrics


def trained(device: str, mask: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """The result, and the gradients of what was there before and of what was written."""
    torch.manual_seed(1)
    before, weight = torch.randn(2, 3, 4, 5).to(device)
    learned = torch.randn(shape).to(device).requires_grad_()
    before.requires_grad_()
    written = before * 2
    written[mask.to(device)] = learned
    (written * written * weight).sum().backward()
    return [t.detach().cpu() for t in (written, before.grad, learned.grad)]


@pytest.mark.parametrize(
    ("dims", "shape"),
    [(2, (5,)), (2, ()), (2, (1,)), (1, (4, 5)), (1, (4, 1)), (1, (5,)), (3, ()), (2, (1, 5))],
    ids=str,
)
def test_values_and_gradients_are_those_of_torch(dims: int, shape: tuple[int, ...]) -> None:
    masks = torch.rand(3, *(3, 4, 5)[:dims]) > 0.5
    for mask in (*masks, torch.zeros_like(masks[0])):
        for got, expected in zip(trained("xla", mask, shape), trained("cpu", mask, shape)):
            torch.testing.assert_close(got, expected)


def test_masks_that_select_other_numbers_share_a_program() -> None:
    trained("xla", torch.ones(3, 4, dtype=torch.bool), (5,))
    compiled = metrics.counter_value("UncachedCompile")
    for count in range(1, 5):
        trained("xla", torch.arange(12).view(3, 4) < count, (5,))
    assert metrics.counter_value("UncachedCompile") == compiled
    torch_xla.sync()


def test_another_shape_raises_torchs_error() -> None:
    texts = []
    for device in ("cpu", "xla"):
        learned = torch.ones(4).to(device).requires_grad_()
        mask = torch.ones(3, 4, dtype=torch.bool, device=device)
        with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape") as raised:
            torch.zeros(3, 4, 5, device=device)[mask] = learned
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_a_leaf_that_requires_grad_is_refused_as_by_torch() -> None:
    x = torch.zeros(3, 5, device="xla", requires_grad=True)
    values = torch.ones(5, device="xla", requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x[torch.ones(3, dtype=torch.bool, device="xla")] = values

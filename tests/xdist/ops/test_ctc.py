"""The CTC loss on the device equals eager torch's, with its gradients."""

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both


def logits(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_the_loss_of_padded_targets_equals_eager(reduction: str) -> None:
    targets = torch.tensor([[1, 1, 2, 3], [2, 4, 0, 0], [3, 3, 3, 0]])

    def loss(x: torch.Tensor) -> torch.Tensor:
        probs = x.log_softmax(2)
        places = targets.to(x.device)
        return F.ctc_loss(probs, places, (9, 7, 9), (4, 2, 3), reduction=reduction)

    both(loss, logits(9, 3, 5))


def test_targets_one_after_the_other_equal_eager() -> None:
    targets = torch.tensor([1, 1, 2, 3, 2, 4])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x.log_softmax(2), targets.to(x.device), (9, 7), (4, 2))

    both(loss, logits(9, 2, 5))


def test_lengths_may_be_tensors_of_the_device() -> None:
    targets, lengths = torch.tensor([[1, 1, 2], [2, 4, 1]]), torch.tensor([3, 2])

    def loss(x: torch.Tensor) -> torch.Tensor:
        steps = torch.tensor([6, 5]).to(x.device)
        return F.ctc_loss(x.log_softmax(2), targets.to(x.device), steps, lengths.to(x.device))

    both(loss, logits(6, 2, 5))


def test_lengths_and_targets_may_be_on_the_cpu() -> None:
    targets, lengths = torch.tensor([[1, 1, 2], [2, 4, 1]]), torch.tensor([3, 2])
    both(lambda x: F.ctc_loss(x.log_softmax(2), targets, lengths * 2, lengths), logits(6, 2, 5))


@pytest.mark.parametrize("zero_infinity", [True, False])
def test_a_target_that_does_not_fit_has_an_infinite_loss_or_none(zero_infinity: bool) -> None:
    targets = torch.tensor([[1, 1, 1], [2, 1, 0]])

    def loss(x: torch.Tensor) -> torch.Tensor:
        probs, places = x.log_softmax(2), targets.to(x.device)
        return F.ctc_loss(
            probs, places, (3, 3), (3, 2), reduction="none", zero_infinity=zero_infinity
        )

    both(loss, logits(3, 2, 5))

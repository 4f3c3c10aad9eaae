"""Losses on the device equal eager torch's, with their gradients."""

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both, served_by_cpu

REDUCTIONS = ["none", "mean", "sum"]


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_two_like_tensors_equal_eager(reduction: str) -> None:
    def losses(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fixed = y.detach()
        return (
            F.mse_loss(x, y, reduction=reduction),
            F.smooth_l1_loss(x, y, reduction=reduction, beta=0.5),
            F.smooth_l1_loss(x, y, reduction=reduction, beta=0.0),
            F.huber_loss(x, y, reduction=reduction, delta=0.7),
            F.soft_margin_loss(x, fixed.sign(), reduction=reduction),
            F.binary_cross_entropy(x.sigmoid(), fixed.sigmoid(), reduction=reduction),
            F.binary_cross_entropy_with_logits(
                x, fixed.sigmoid(), fixed.abs(), reduction=reduction, pos_weight=fixed[0].abs()
            ),
        )

    both(losses, *pair())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_with_weights_and_ignored_targets_equals_eager(reduction: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64)
    target = torch.tensor([0, 4, -100, 2, 2, 1])
    weight = torch.rand(5, dtype=torch.float64)

    def losses(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w = weight.to(x.device)
        return (
            F.cross_entropy(x, y, reduction=reduction),
            F.cross_entropy(x, y, w, reduction=reduction, label_smoothing=0.1),
            F.nll_loss(x.log_softmax(1), y, w, reduction=reduction),
            F.multi_margin_loss(x, y.clamp(min=0), weight=w, reduction=reduction),
            F.multi_margin_loss(x, y.clamp(min=0), p=2, margin=0.5, reduction=reduction),
        )

    both(losses, logits, target)


def test_classes_may_be_bytes() -> None:
    scores = torch.linspace(-1, 1, 15).reshape(5, 3)
    classes = torch.tensor([0, 2, 1, 1, 0], dtype=torch.uint8)
    assert served_by_cpu(lambda x, y: F.cross_entropy(x, y), scores, classes) == []


def test_the_loss_of_nothing_but_ignored_targets_is_nan() -> None:
    logits, target = torch.randn(3, 4), torch.full((3,), -100)
    both(lambda x, y: F.cross_entropy(x, y, reduction="sum"), logits, target)
    assert F.cross_entropy(logits.to("xla"), target.to("xla")).isnan().item()


def test_an_ignored_position_silences_infinities() -> None:
    log_probs = torch.tensor([[float("-inf"), 0.0], [0.0, -1.0]])
    target = torch.tensor([-100, 1])
    both(F.nll_loss, log_probs, target)


def test_losses_of_images_and_of_one_sample_equal_eager() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    both(F.cross_entropy, images, labels)
    both(F.cross_entropy, torch.randn(3), torch.tensor(2))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_multilabel_margin_loss_reads_targets_up_to_minus_one(reduction: str) -> None:
    x = torch.randn(2, 4, dtype=torch.float64)
    target = torch.tensor([[3, 0, -1, 1], [-1, 2, 0, 1]])
    both(lambda x, y: F.multilabel_margin_loss(x, y, reduction=reduction), x, target)


def test_losses_made_of_other_operators_equal_eager() -> None:
    def losses(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fixed = y.detach().abs()
        return (
            F.kl_div(x, fixed, reduction="batchmean"),
            F.l1_loss(x, fixed),
            F.poisson_nll_loss(x, fixed),
            F.cosine_similarity(x, fixed),
            F.triplet_margin_loss(x, fixed, fixed.flip(0)),
        )

    both(losses, *pair())


def test_losses_without_a_meta_kernel_stay_on_the_device() -> None:
    def losses(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        target = torch.tensor([0, 2, 4, 1], device=x.device)
        listed = torch.tensor([[1, 2, -1, 0, 0]] * 4, device=x.device)
        steps = x[:, None].log_softmax(2)
        return (
            F.multi_margin_loss(x, target),
            F.multilabel_margin_loss(x, listed),
            F.ctc_loss(steps, listed[:1, :2], (4,), (2,)),
        )

    assert served_by_cpu(losses, pair()[0]) == []


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="new in torch 2.13")
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_chunked_linear_cross_entropy_of_halves_stays_on_the_device(reduction: str) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(8, 3).half(), torch.randn(4, 3).half()
    target = torch.randint(4, (8,))
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)

    def loss(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        how = {"reduction": reduction, "options": options}
        return F.linear_cross_entropy(x, weight, target, **how)

    assert served_by_cpu(loss, x, weight, target) == []


@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 3, 3)])
def test_classes_given_as_floats_are_read_as_integers_with_a_warning(
    shape: tuple[int, ...],
) -> None:
    scores = torch.randn(shape)
    classes = torch.randint(5, (shape[0], *shape[2:]))
    here = scores.clone().requires_grad_()
    expected = F.cross_entropy(here, classes)
    expected.backward()
    there = scores.to("xla").requires_grad_()
    with pytest.warns(UserWarning, match="nll_loss: the target is torch.float32, which torch does"):
        found = F.cross_entropy(there, classes.float().to("xla"))
        found.backward()
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(there.grad.cpu(), here.grad)

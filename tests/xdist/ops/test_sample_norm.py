"""Layer, RMS and group norm on the device equal eager torch's, with their gradients."""

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both, normal


def test_layer_norm_equals_eager_with_and_without_weight() -> None:
    x, weight, bias = normal((3, 4, 6), (4, 6), (4, 6))
    both(lambda x, w, b: F.layer_norm(x, (4, 6), w, b), x, weight, bias)
    both(lambda x: F.layer_norm(x, (6,)), x)


def test_rms_norm_equals_eager() -> None:
    both(lambda x, w: F.rms_norm(x, (6,), w), *normal((3, 4, 6), (6,)))


def test_group_and_instance_norm_equal_eager() -> None:
    x, weight, bias = normal((2, 6, 5, 3), (6,), (6,))
    both(lambda x, w, b: F.group_norm(x, 3, w, b), x, weight, bias)
    both(lambda x: F.group_norm(x, 2), x)
    both(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, weight, bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layer_norm_of_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x, weight, bias = (t.to(dtype) for t in normal((8, 64), (64,), (64,)))
    wide = F.layer_norm(x.float(), (64,), weight.float(), bias.float()).to(dtype)
    found = F.layer_norm(x.to("xla"), (64,), weight.to("xla"), bias.to("xla")).cpu()
    torch.testing.assert_close(found, wide, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_gradients_in_half_precision_do_not_suffer_from_a_large_mean() -> None:
    x, grad, weight = (t.bfloat16() for t in normal((8, 64), (8, 64), (64,)))

    def gradients(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.to(dtype).to(device).detach().requires_grad_() for t in (x + 30, weight)]
        out = F.layer_norm(leaves[0], (64,), leaves[1], torch.zeros_like(leaves[1]))
        found = torch.autograd.grad(out, leaves, grad.to(dtype).to(device))
        return [t.cpu().double() for t in found]

    for ours, exact in zip(gradients("xla", torch.bfloat16), gradients("cpu", torch.float64)):
        assert (ours - exact).norm() < 0.004 * exact.norm()


def test_a_shape_that_does_not_fit_is_refused_in_torchs_words() -> None:
    x = torch.zeros(3, 4, device="xla")
    with pytest.raises(RuntimeError, match=r"Given normalized_shape=\[5\], expected input with"):
        F.layer_norm(x, (5,))


def test_weights_of_several_dims_and_of_a_whole_operand_equal_eager() -> None:
    both(lambda x, w: F.layer_norm(x, (4, 6), w), *normal((2, 3, 4, 6), (4, 6)))
    both(lambda x, w, b: F.layer_norm(x, (24,), w, b), *normal((24,), (24,), (24,)))
    both(lambda x, w: F.rms_norm(x, (4, 6), w), *normal((3, 4, 6), (4, 6)))
    both(lambda x, w: F.group_norm(x, 4, w), *normal((3, 4), (4,)))


def test_no_samples_and_no_numbers_equal_eager() -> None:
    both(lambda x, w, b: F.layer_norm(x, (6,), w, b), *normal((0, 6), (6,), (6,)))
    both(lambda x, w, b: F.group_norm(x, 2, w, b), *normal((0, 4, 5), (4,), (4,)))


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_gradients_are_as_near_to_the_exact_ones_as_eagers_where_the_mean_is_large(norm) -> None:
    x, weight, grad = (t.float() for t in normal((64, 512), (512,), (64, 512)))
    x = x + 300

    def gradients(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.to(device, dtype).requires_grad_() for t in (x, weight)]
        one = F.layer_norm(leaves[0], (512,), leaves[1])
        out = one if norm == "layer" else F.group_norm(leaves[0], 8, leaves[1])
        return [t.cpu().double() for t in torch.autograd.grad(out, leaves, grad.to(out))]

    runs = [("xla", torch.float32), ("cpu", torch.float32), ("cpu", torch.float64)]
    for ours, theirs, exact in zip(*(gradients(*run) for run in runs)):
        assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm()

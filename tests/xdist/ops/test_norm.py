"""Normalisation on the device equals eager torch's, with its gradients and statistics."""

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both, served_by_cpu


def normal(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_its_running_statistics_equal_eager(training: bool) -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = torch.linspace(0, 1, 3, dtype=x.dtype, device=x.device)
        var = torch.linspace(1, 2, 3, dtype=x.dtype, device=x.device)
        out = F.batch_norm(x, mean, var, weight, bias, training, 0.3, 1e-5)
        return out, mean, var

    both(norm, *normal((4, 3, 5, 5), (3,), (3,)))


def test_batch_norm_without_weight_or_statistics_equals_eager() -> None:
    both(lambda x: F.batch_norm(x, None, None, training=True), *normal((6, 3)))


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


def test_weight_norm_and_local_response_norm_equal_eager() -> None:
    v, g, x = normal((4, 3), (4, 1), (2, 4, 5, 5))
    both(lambda v, g: torch._weight_norm(v, g, 0), v, g)
    both(lambda x: F.local_response_norm(x, 3), x)
    both(lambda x: torch.renorm(x, 2, 1, 1.5), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layer_norm_of_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x, weight, bias = (t.to(dtype) for t in normal((8, 64), (64,), (64,)))
    wide = F.layer_norm(x.float(), (64,), weight.float(), bias.float()).to(dtype)
    found = F.layer_norm(x.to("xla"), (64,), weight.to("xla"), bias.to("xla")).cpu()
    torch.testing.assert_close(found, wide, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_the_second_derivative_of_batch_norm_equals_eager() -> None:
    def penalty(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = F.batch_norm(x, None, None, weight, training=True).sin().sum()
        return torch.autograd.grad(out, x, create_graph=True)[0]

    both(penalty, *normal((4, 3, 2, 2), (3,)))


def test_evaluation_stays_on_the_device() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        mean, var = x.detach().mean(0), x.detach().var(0)
        return F.batch_norm(x, mean, var)

    assert served_by_cpu(norm, *normal((6, 3))) == []

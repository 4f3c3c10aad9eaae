"""Normalisation on the device equals eager torch's, with its gradients and statistics."""

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both, normal, served_by_cpu

from torch_xdist import platforms


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


def test_weight_norm_and_local_response_norm_equal_eager() -> None:
    v, g, x = normal((4, 3), (4, 1), (2, 4, 5, 5))
    both(lambda v, g: torch._weight_norm(v, g, 0), v, g)
    both(lambda x: F.local_response_norm(x, 3), x)
    both(lambda x: torch.renorm(x, 2, 1, 1.5), x)


@pytest.mark.parametrize("parameters", [None, torch.bfloat16, torch.float32])
def test_statistics_have_the_dtype_of_the_parameters_as_on_the_cpu(parameters) -> None:
    x, w = (t.bfloat16() for t in normal((3, 4, 6), (6,)))
    w = w.to(parameters) if parameters else None
    c = w[:4] if parameters else None

    def statistics(x, w, c) -> list[torch.Tensor]:
        layer = torch.native_layer_norm(x, (6,), w, w, 1e-5)
        group = torch.native_group_norm(x, c, c, 3, 4, 6, 2, 1e-5)
        batch = torch.native_batch_norm(x, c, c, None, None, True, 0.1, 1e-5)
        return [*layer[1:], *group[1:], *batch[1:]]

    expected = statistics(x, w, c)
    found = statistics(x.to("xla"), *(t if t is None else t.to("xla") for t in (w, c)))
    for want, have in zip(expected, found):
        assert have.shape == want.shape
        torch.testing.assert_close(have.cpu(), want)


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


@pytest.fixture
def in_one_pass(choose):
    choose(reads_once=True)


@pytest.mark.parametrize("samples", [1, 4])
def test_batch_norm_in_one_pass_equals_eager(in_one_pass, samples) -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = torch.linspace(0, 1, 3, dtype=x.dtype, device=x.device)
        var = torch.linspace(1, 2, 3, dtype=x.dtype, device=x.device)
        out = F.batch_norm(x, mean, var, weight, bias, True, 0.3, 1e-5)
        return out, mean, var

    both(norm, *normal((samples, 3, 5, 5), (3,), (3,)))
    both(norm, *normal((samples + 1, 3), (3,), (3,)))


@pytest.mark.parametrize("first", [0.0, 1e4])
def test_one_pass_loses_nothing_where_the_mean_is_large(in_one_pass, first) -> None:
    x = normal((16, 3, 8, 8))[0].float() + 1000
    x[0] += first
    got = F.batch_norm(x.to("xla"), None, None, training=True, eps=1e-12).cpu()
    exact = F.batch_norm(x.double(), None, None, training=True, eps=1e-12)
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=2e-4)


def test_one_pass_of_equal_numbers_finds_no_variance(in_one_pass) -> None:
    x = torch.full((5, 2, 3, 3), 0.1)
    var = torch.ones(2, device="xla")
    F.batch_norm(x.to("xla"), torch.zeros(2, device="xla"), var, training=True, momentum=1)
    assert (var.cpu() >= 0).all() and (var.cpu() < 1e-12).all()
    x[2] = torch.nan
    assert F.batch_norm(x.to("xla"), None, None, training=True).isnan().all()


def test_gpus_alone_take_one_pass() -> None:
    assert [name for name, x in platforms.CHOICES.items() if x.reads_once] == ["cuda"]

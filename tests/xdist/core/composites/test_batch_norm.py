"""Batch norm by the short way: the same values, gradients, statistics and errors."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.composites import batch_norm
from torch_xdist.core.run import cuts


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """No types have passed before."""
    batch_norm._passed.clear()


def trained(device: str, training: bool, layer: nn.Module, shape: tuple[int, ...]) -> list:
    """Results, gradients and statistics of three passes."""
    torch.manual_seed(0)
    layer = layer.train(training).to(device)
    kept = []
    for _ in range(3):
        x = torch.randn(shape).to(device).requires_grad_()
        out = layer(x)
        out.square().sum().backward()
        torch_xla.sync()
        kept += [out, x.grad]
    kept += [*layer.buffers(), *(p.grad for p in layer.parameters())]
    return [t.detach().cpu() for t in kept]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}], ids=str
)
def test_values_gradients_and_statistics_equal_eager(options: dict, training: bool) -> None:
    make: Callable[[], nn.Module] = lambda: nn.BatchNorm2d(3, **options)  # noqa: E731
    shape = (4, 3, 5, 2)
    wanted, found = (trained(device, training, make(), shape) for device in ("cpu", "xla"))
    for want, have in zip(wanted, found, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)
    assert len(batch_norm._passed) == 1


def test_a_layer_is_one_row_and_makes_no_empty_tensor() -> None:
    layer = nn.BatchNorm1d(3, momentum=0.1).to("xla")
    x = torch.randn(4, 3).to("xla")
    with torch.no_grad():
        for _ in range(3):
            F.batch_norm(x, layer.running_mean, layer.running_var, training=True)
            torch_xla.sync()
    assert cuts.LOG[-1].rows == 1


def test_the_first_step_is_the_same_program_as_the_next() -> None:
    layer = nn.BatchNorm1d(3).to("xla")
    before = metrics.counter_value("UncachedCompile") or 0
    for _ in range(3):
        layer(torch.ones(4, 3).to("xla")).sum().backward()
        torch_xla.sync()
        layer.zero_grad()
    assert metrics.counter_value("UncachedCompile") == before + 1


def test_torch_says_what_is_wrong_with_operands() -> None:
    x, three = torch.randn(2, 4, 3).to("xla"), torch.zeros(3).to("xla")
    with pytest.raises(RuntimeError, match="running_mean should contain 4 elements not 3"):
        F.batch_norm(x, three, three, training=True)
    with pytest.raises(RuntimeError, match="weight"):
        F.batch_norm(x, None, None, three, three, training=True)
    assert not batch_norm._passed


def test_other_operands_of_types_that_passed_are_looked_at() -> None:
    good, other = (torch.zeros(n).to("xla") for n in (4, 3))
    x = torch.randn(2, 4, 3).to("xla")
    for _ in range(2):
        F.batch_norm(x, good, good.clone(), training=True)
    with pytest.raises(RuntimeError, match="running_mean should contain 4 elements not 3"):
        F.batch_norm(x, other, other.clone(), training=True)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_norm, "_MOST", 2)
    for channels in range(1, 6):
        F.batch_norm(torch.randn(2, channels).to("xla"), None, None, training=True)
    assert 1 <= len(batch_norm._passed) <= 2


def test_an_empty_batch_goes_torchs_way_each_time() -> None:
    layer = nn.BatchNorm2d(3).to("xla").eval()
    for _ in range(2):
        assert layer(torch.zeros(0, 3, 2, 2).to("xla")).shape == (0, 3, 2, 2)
    assert not batch_norm._passed

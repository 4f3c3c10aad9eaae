"""In long chains of pointwise rows a CPU computes once what several rows read."""

import re
from collections.abc import Sequence

import pytest
import torch

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.rows import long_chains

hlo_of = torch_xla._XLAC._get_xla_tensors_hlo


def pending() -> frozenset[int]:
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    return long_chains.to_settle(entries)


def recurrence(x: torch.Tensor, times: int) -> torch.Tensor:
    """What RWKV and state space models write out: each state is read by two of the next."""
    top, low = x[:, 0], x[:, 0] * 2
    outs = []
    for t in range(times):
        now = x[:, t]
        larger = torch.maximum(top, now)
        low = low * (top - larger) + now * (now - larger)
        top = larger
        outs.append(low * top)
    return torch.stack(outs, 1)


@pytest.fixture
def x():
    torch.manual_seed(0)
    torch_xla.sync()
    return torch.randn(3, 24, 4)


def test_a_loop_over_time_is_settled_now_and_then(x):
    found = recurrence(x.to("xla"), 24)
    assert 5 <= len(pending()) <= 48
    torch.testing.assert_close(found.cpu(), recurrence(x, 24))


def test_gradients_of_such_a_loop_equal_eagers(x):
    def gradient(x):
        x.requires_grad_()
        return torch.autograd.grad(recurrence(x, 6).sum(), x)[0]

    torch.testing.assert_close(gradient(x.to("xla")).cpu(), gradient(x.clone()))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 + 1,
        lambda x: sum(x * i for i in range(9)),
        lambda x: [x := (y := torch.tanh(x)) * y for _ in range(20)][-1],
        lambda x: [x := x @ x.mT @ x + x for _ in range(9)][-1],
    ],
    ids=[
        "few",
        "many that one row reads",
        "what XLA computes once anyway",
        "products between them",
    ],
)
def test_others_are_left_to_xla(x, function):
    assert isinstance(function(x.to("xla")), torch.Tensor)
    assert pending() == frozenset()


def test_a_kernel_that_nobody_else_reads_ends_somewhere_too(x):
    def many(x):
        for i in range(300):
            x = torch.sin(x) if i % 2 else x + i
        return x

    found = many(x.to("xla"))
    assert len(pending()) == 2
    torch.testing.assert_close(found.cpu(), many(x))


def test_a_loop_twice_as_long_is_a_program_twice_as_long(x):
    def instructions(times: int) -> int:
        on_device = x.to("xla")
        torch_xla.sync()
        return len(re.findall(r"^\s+\S+ = ", hlo_of([recurrence(on_device, times)]), re.M))

    assert instructions(24) < 2.5 * instructions(12)


def sums_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum so far of arrays, each time read by the next one and by another row."""
    whole, outs = parts[0], []
    for part in parts[1:]:
        whole = whole + part.roll(1, 0)
        outs.append(whole.mT.relu())
    return torch.stack(outs)


@pytest.mark.parametrize(("side", "count"), [(128, 2), (64, 0)])
def test_a_sum_of_many_large_arrays_is_settled_now_and_then(side, count):
    parts = torch.randn(10, side, side)
    several = [part.to("xla") for part in parts]
    torch_xla.sync()
    found = sums_of(several)
    assert len(pending()) == count
    torch.testing.assert_close(found.cpu(), sums_of(parts))


def test_gradients_of_layers_on_rolled_windows_equal_eagers():
    """Where a layer norm's gradient, the first of three results, is part of what is settled."""
    torch.manual_seed(0)
    weights = torch.randn(7, 64, 64, dtype=torch.float64)
    start = torch.randn(4, 32, 64, dtype=torch.float64)

    def loss(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        for weight in weights:
            windows = torch.nn.functional.layer_norm(x, (64,), weight[0]).roll(3, 1)
            x = x + (windows @ weight).roll(-3, 1).tanh()
        return x.square().sum()

    found = []
    for device in ("cpu", "xla"):
        leaves = [part.to(device).requires_grad_() for part in (start, *weights)]
        if device == "xla":
            torch_xla.sync()
        found.append(torch.autograd.grad(loss(leaves[0], leaves[1:]), leaves))
    assert pending()
    for expected, got in zip(*found):
        torch.testing.assert_close(got.cpu(), expected)


def test_a_layer_norm_whose_operand_has_no_gradient_is_left():
    x, weight = torch.randn(64, 256), torch.randn(256)

    def gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.layer_norm(x, (256,), weight.requires_grad_())
        return torch.autograd.grad(out.square().sum(), weight)[0]

    found = gradient(x.to("xla"), weight.to("xla"))
    assert pending() == frozenset()
    torch.testing.assert_close(found.cpu(), gradient(x, weight))

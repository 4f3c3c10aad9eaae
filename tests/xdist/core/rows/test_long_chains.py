"""In long chains of pointwise rows a CPU computes once what several rows read."""

import re

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


def test_a_loop_twice_as_long_is_a_program_twice_as_long(x):
    def instructions(times: int) -> int:
        on_device = x.to("xla")
        torch_xla.sync()
        return len(re.findall(r"^\s+\S+ = ", hlo_of([recurrence(on_device, times)]), re.M))

    assert instructions(24) < 2.5 * instructions(12)

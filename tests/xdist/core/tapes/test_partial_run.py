"""Reads between a collective and the end of the step."""

import pytest
import torch
from device_ranks import DeviceRanks

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import device, steps
from torch_xdist.core.record.jax_ops import record_jax


@pytest.fixture(autouse=True)
def nothing_pending():
    steps.sync()
    yield
    steps.sync()


def exchanged(tensor):
    """A row that counts as a collective, and can be run by one rank."""
    return record_jax("test.exchange", lambda x: x * 10, [tensor], collective=True)[0]


def pending_rows():
    return [row[0].name for row in device.trace_of(0).rows]


def test_a_read_leaves_the_trace_of_a_collective_as_it_is():
    x = torch.tensor([1.0, 2.0], device="xla")
    loss = (x * 3).sum()
    reduced = exchanged(loss * 2)
    after = reduced + 1
    before = pending_rows()
    for _ in range(2):
        assert loss.item() == 9
        assert pending_rows() == before
    assert after.item() == 181
    assert pending_rows() == []


def test_a_read_of_a_collective_runs_everything():
    x = torch.tensor(2.0, device="xla")
    reduced = exchanged(x + 1)
    assert reduced.item() == 30
    assert pending_rows() == []


def test_a_read_without_pending_collectives_runs_everything_once():
    x = torch.tensor(2.0, device="xla") + 1
    y = x * 2
    assert x.item() == 3
    assert pending_rows() == [] and y.item() == 6


def test_scalars_random_numbers_and_writes_are_those_of_their_rows():
    torch.manual_seed(3)
    expected = torch.rand(4, device="xla").cpu()
    torch.manual_seed(3)
    unread = torch.ones(4, device="xla") * 0.1
    noise = torch.rand(4, device="xla")
    x = torch.zeros(4, device="xla")
    reduced = exchanged(noise * unread)
    x.add_(0.3)
    view = x[:2]
    view.mul_(0.5)
    assert x.tolist() == pytest.approx([0.15, 0.15, 0.3, 0.3])
    torch.testing.assert_close((noise * 7.0).cpu(), expected * 7)
    torch.testing.assert_close((reduced * 0.7).cpu(), expected * 0.7)


def test_operands_of_what_waits_are_not_given_away():
    x = torch.ones(3, device="xla")
    steps.sync()
    reduced = exchanged(x)
    seen = x + 1
    del x
    assert seen.tolist() == [2, 2, 2]
    assert reduced.tolist() == [10, 10, 10]


def test_the_line_of_a_waiting_collective_is_kept():
    exchanged_value = exchanged(torch.ones(2, device="xla"))
    (torch.ones(2, device="xla") * 4).tolist()
    places = list(device.trace_of(0).tape.collectives.values())
    assert len(places) == 1 and places[0].startswith(__file__)
    assert exchanged_value.tolist() == [10, 10]


def prints_on_one_rank(rank, size):
    import torch

    import torch_xla.core.xla_model as xm

    x = torch.full((3,), rank + 1.0, device="xla")
    loss = (x * 2).sum()
    total = xm.all_reduce("sum", x)
    if rank == 0:
        assert loss.item() == 6
    xm.mark_step()
    return total.tolist()


@pytest.mark.on_cpu
@pytest.mark.parametrize("transport", ["host", pytest.param("gloo", marks=pytest.mark.long)])
def test_one_rank_may_read_between_a_collective_and_the_end_of_the_step(transport):
    with DeviceRanks(2, XDIST_TRANSPORT=transport) as ranks:
        assert ranks.run(prints_on_one_rank) == [[3.0] * 3] * 2

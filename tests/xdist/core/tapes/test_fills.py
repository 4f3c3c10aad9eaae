"""Fills that nothing reads, and arrays that had their values before their row ran."""

import pytest
import torch

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices import steps
from torch_xdist.core.programs import program
from torch_xdist.core.tapes import fills


@pytest.fixture
def compiled():
    """A function that tells how many programs were compiled since the last time."""
    steps.sync()
    program.PROGRAMS.clear()
    last = metrics.counter_value("UncachedCompile") or 0

    def since():
        nonlocal last
        now = metrics.counter_value("UncachedCompile") or 0
        found, last = now - last, now
        return found

    return since


def here():
    return devices_here.trace_of(devices_here.default_index())


def test_zeros_that_a_dictionary_refuses_make_no_program(compiled):
    weight, state, counts = torch.ones(3).to("xla"), {}, []
    steps.sync()
    compiled()
    for _ in range(4):
        mean = state.setdefault("mean", torch.zeros_like(weight))
        mean.mul_(0.5).add_(weight)
        weight.add_(1)
        torch_xla.sync()
        counts.append(compiled())
    # The first step makes them, the others read what the one before it left.
    assert counts == [1, 1, 0, 0]
    assert weight.tolist() == [5.0] * 3
    assert mean.tolist() == [((0.5 + 2) / 2 + 3) / 2 + 4] * 3


@pytest.mark.parametrize(
    "unused",
    [
        lambda weight: torch.zeros(2, device="xla"),
        lambda weight: torch.empty_like(weight),
        lambda weight: weight.new_ones(4),
        lambda weight: weight.clone(),
        lambda weight: weight.clone().clone(),
    ],
)
def test_a_step_with_a_fill_that_nothing_reads_is_the_step_without(compiled, unused):
    weight, counts = torch.ones(3).to("xla"), []
    steps.sync()
    compiled()
    for step in range(5):
        if step % 2:
            unused(weight)
        weight.mul_(2)
        torch_xla.sync()
        counts.append(compiled())
    assert counts == [1, 0, 0, 0, 0]
    assert weight.tolist() == [32.0] * 3


def test_where_numbers_are_fed_each_way_has_its_program_from_the_second_time(compiled):
    weight, counts = torch.ones(3).to("xla"), []
    steps.sync()
    compiled()
    for step in range(6):
        if step:
            torch.full_like(weight, 0.25 * step)
        weight.mul_(2)
        torch_xla.sync()
        counts.append(compiled())
    assert counts == [1, 0, 1, 0, 0, 0]
    assert weight.tolist() == [64.0] * 3


def test_what_is_read_by_fills_alone_stays(compiled):
    one, other = torch.ones(3).to("xla"), torch.ones(2).to("xla")
    steps.sync()
    other.clone()
    one.add_(1)
    torch_xla.sync()
    assert one.tolist() == [2.0] * 3 and other.tolist() == [1.0] * 2


def test_an_array_that_no_row_reads_keeps_no_fill(compiled):
    weight, aside = torch.ones(3).to("xla"), torch.ones(3).to("xla")
    steps.sync()
    compiled()
    for is_first in (True, False):
        here().slot_of(aside.value)
        if is_first:
            torch.zeros_like(weight)
        weight.mul_(2)
        steps.sync()
    assert compiled() == 1 and weight.tolist() == [4.0] * 3


def made_at_once(number=0.0):
    """A tensor whose row made zeros and that has this number at once."""
    made = torch.zeros_like(torch.ones(3).to("xla"))
    buffer = torch.full((3,), number).to("xla").value.buffer
    return made, fills.give_values(made.value, buffer)


def test_what_a_tensor_has_at_once_is_read_as_it_is():
    made, fill = made_at_once(2.0)
    twice = made * 2
    fills.take_back(here(), [fill], {id(fill.value())})
    assert twice.tolist() == [4.0] * 3 and made.tolist() == [2.0] * 3


def test_what_is_gone_is_made_by_its_row_again():
    steps.sync()
    made, fill = made_at_once(2.0)
    weight = torch.ones(3).to("xla")
    twice = made * 2 + weight
    weight.mul_(3)
    view = twice[1:]
    del made
    before = here().tape
    fills.take_back(here(), [fill], {id(fill.value())})
    after = here().tape
    assert after is not before
    assert len(after.buffers) == len(before.buffers) - 1
    # The row makes zeros, where the array had another number: that shows which of them is read.
    assert twice.tolist() == [1.0] * 3 and view.tolist() == [1.0] * 2
    assert weight.tolist() == [3.0] * 3


def test_fills_of_another_tape_stay_as_they_are():
    made, fill = made_at_once(2.0)
    twice = made * 2
    torch_xla.sync()
    later = made * 3
    del made
    before = here().tape
    fills.take_back(here(), [fill], {id(fill.value())})
    assert here().tape is before
    assert twice.tolist() == [4.0] * 3 and later.tolist() == [6.0] * 3


def test_two_leaves_of_one_array_stay_two():
    one, other = torch.ones(3).to("xla"), torch.zeros(3).to("xla")
    other.copy_(one)
    made, fill = made_at_once()
    total = one * 2 + other + made
    one.add_(1)
    other.add_(2)
    del made
    fills.take_back(here(), [fill], {id(fill.value())})
    assert total.tolist() == [3.0] * 3
    assert one.tolist() == [2.0] * 3 and other.tolist() == [3.0] * 3


def test_what_is_no_state_is_pending_again_also_where_a_tensor_has_it():
    steps.sync()
    made, fill = made_at_once(2.0)
    twice = made * 2
    fills.take_back(here(), [fill], ())
    assert twice.tolist() == [0.0] * 3 and made.tolist() == [0.0] * 3


def test_what_was_written_since_keeps_what_was_written():
    steps.sync()
    made, fill = made_at_once(2.0)
    made.add_(1)
    other, another = made_at_once(2.0)
    other.copy_(torch.ones(3).to("xla"))
    fills.take_back(here(), [fill, another], ())
    assert made.tolist() == [1.0] * 3 and other.tolist() == [1.0] * 3


def test_a_recording_that_was_interrupted_before_its_number_is_none_for_those_with_one(compiled):
    weight = torch.ones(3).to("xla")
    steps.sync()
    for step in range(6):
        torch.full_like(weight, 0.25)
        if step < 3:
            here().tape.scalars.clear()
        weight.mul_(2)
        torch_xla.sync()
    assert weight.tolist() == [64.0] * 3

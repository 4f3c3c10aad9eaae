"""Whether a batch is worth a thread, decided from what batches cost."""

import pytest

from torch_xdist.loaders.pace import Pace


def pace_of(made_s, moved_s=0.0001, stepped_s=1.0):
    pace = Pace()
    for number, seconds in enumerate(made_s):
        pace.made(seconds, first=number == 0)
        pace.moved(moved_s)
        pace.stepped(stepped_s)
    return pace


@pytest.mark.parametrize(
    ("made_s", "is_quick"),
    [
        ([], True),
        ([1.0], True),  # the start of the workers
        ([1.0, 0.001], True),  # too early to say
        ([1.0, 0.006], False),  # clearly slow
        ([1.0, *[0.0003] * 10], True),
        ([1.0, *[0.0005] * 10], False),
        ([1.0, *[0.0001] * 10, 0.02], True),  # one busy moment
        ([1.0, *[*[0.0001] * 9, 0.02] * 8], False),  # a buffer refilled every ten batches
    ],
)
def test_batches_are_quick_below_half_a_millisecond(made_s, is_quick):
    assert pace_of(made_s).is_quick() is is_quick


def test_moving_counts_as_well():
    assert not pace_of([1.0, *[0.0001] * 10], moved_s=0.001).is_quick()


def test_nothing_can_be_hidden_behind_a_loop_that_does_nothing():
    assert pace_of([1.0, *[0.1] * 10], stepped_s=0.0001).is_quick()
    assert not pace_of([1.0, *[0.1] * 10], stepped_s=0.01).is_quick()

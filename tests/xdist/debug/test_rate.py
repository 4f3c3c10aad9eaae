"""The rate tracker, on a clock of its own."""

import pytest

from torch_xdist.debug.rate import RateTracker


def tracker(times, **kwargs):
    return RateTracker(clock=iter(times).__next__, **kwargs)


def test_the_first_rate_is_plain_and_later_ones_are_smoothed():
    rate = tracker([0, 1, 2], smooth_factor=0.4)
    rate.add(100)
    assert rate.rate() == 100
    rate.add(200)
    assert rate.rate() == pytest.approx(0.6 * 200 + 0.4 * 100)


def test_the_global_rate_counts_from_the_start():
    rate = tracker([0, 4])
    rate.add(100)
    assert rate.global_rate() == 25


def test_no_time_is_no_rate():
    rate = tracker([0, 0])
    rate.add(1)
    assert rate.global_rate() == 0

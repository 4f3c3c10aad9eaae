"""Values of options: durations, times, and what may be either."""

import time
from datetime import UTC, datetime

import click
import pytest

from torch_xdist.launcher.ways_in.param_types import Since


def since(text: str) -> float:
    return Since().convert(text, None, None)


def test_a_number_of_ten_digits_is_a_time_and_a_small_one_a_duration() -> None:
    assert since("1764000000") == 1764000000.0 and since("1764000000.5") == 1764000000.5
    assert since("@90") == 90.0
    for text, seconds in (("90", 90.0), ("1.5", 1.5), ("10m", 600.0), ("2 h", 7200.0)):
        assert time.time() - since(text) == pytest.approx(seconds, abs=5.0)


def test_an_iso_time_is_of_this_zone_unless_it_says_its_own() -> None:
    assert since("2031-05-17T08:30") == datetime(2031, 5, 17, 8, 30).timestamp()
    assert since("2031-05-17") == datetime(2031, 5, 17).timestamp()
    own = datetime(2031, 5, 17, 8, 30, tzinfo=UTC).timestamp()
    assert since("2031-05-17T08:30+00:00") == own


@pytest.mark.parametrize("text", ["20310517", "1764000000000"])
def test_a_number_that_may_be_either_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"--since: {text} may be a duration or a time; w"):
        since(text)


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(click.BadParameter, match=r"'noon' is no duration; .*; or a time such as"):
        since("noon")

"""What is seen of the ranks of a host that is lost."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.head.sight import Clock, Sight


def sight_of_two(clock: Clock) -> Sight:
    job = SimpleNamespace(ranks=lambda: range(2), shares=lambda: [2], job_id="j", device="CPU")
    return Sight(cast(Job, job), 0, clock)


def seen_at(ended_s: float, lost_s: float, **ended: Any) -> Any:
    """Rank 0, which ended, when its host is lost."""
    now = SimpleNamespace(s=0.0)
    clock = Clock(lambda: now.s)
    sight = sight_of_two(clock)
    # It looks at its clock all the time: a gap would be time in which it was stopped.
    while now.s < ended_s:
        now.s, _ = now.s + 0.5, clock.now_s()
    sight._see(0, ended_s=clock.now_s(), **ended)
    while now.s < lost_s:
        now.s, _ = now.s + 0.5, clock.now_s()
    sight.lose(range(2), "its stream ended")
    return sight.seen[0].report


def test_a_rank_that_was_told_to_end_just_before_is_lost_with_its_host() -> None:
    assert seen_at(5.0, 6.0, exit_code=-15).kind == "host_lost"


@pytest.mark.parametrize(
    ("ended_s", "ended"),
    [
        (1.0, {"exit_code": -15}),
        (5.0, {"exit_code": -9}),
        (5.0, {"exit_code": -15, "stopped": True}),
    ],
)
def test_a_rank_that_ended_by_itself_is_not(ended_s: float, ended: dict[str, Any]) -> None:
    assert seen_at(ended_s, 6.0, **ended) is None


@pytest.mark.parametrize(("collective", "met"), [("", False), ("all_reduce(sum) of f[2]", True)])
def test_ranks_that_said_they_were_in_a_collective_have_met(collective: str, met: bool) -> None:
    sight = sight_of_two(Clock(lambda: 0.0))
    assert not sight.have_met()
    beats = [[[1], {"step": 3, "collective": collective}]]
    sight.take({"op": "beats", "same": [], "beats": beats, "states": {}}, b"")
    assert sight.have_met() == met

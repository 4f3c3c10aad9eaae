"""What is seen of the ranks of a host that is lost."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.head.sight import Clock, Sight


def sight_of_two(clock: Clock, kind: str = "script") -> Sight:
    job = SimpleNamespace(ranks=lambda: range(2), shares=lambda: [2], job_id="j", device="CPU")
    job.kind, job.nprocs = kind, 2
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


@pytest.mark.parametrize("order", ["s0 a0 s1 a1", "s0 a0 a1 s1", "a1 a0 s1 s0", "s0 s1 a1 a0"])
def test_all_have_arrived_once_the_nursery_has_told_of_all_too(order: str) -> None:
    sight = sight_of_two(Clock(lambda: 0.0))
    words = order.split()
    events = [
        sight.take({"op": op, "rank": int(rank), "pid": 100 + int(rank)}, b"")
        for op, rank in (({"s": "started", "a": "arrived"}[word[0]], word[1]) for word in words)
    ]
    assert events == [None] * 3 + [{"event": "arrived", "pids": {0: 100, 1: 101}}]


def test_a_program_has_arrived_when_it_has_started() -> None:
    sight = sight_of_two(Clock(lambda: 0.0), "program")
    events = [sight.take({"op": "started", "rank": r, "pid": r}, b"") for r in range(2)]
    assert events == [None, {"event": "arrived", "pids": {0: 0, 1: 1}}] and sight.absent() == []


ENDED = {"stopped": False, "oom": False, "tail": []}


def test_ranks_that_failed_are_those_that_said_so_or_ended_with_another_code_than_0() -> None:
    sight = sight_of_two(Clock(lambda: 0.0))
    sight.take({"op": "ended", "rank": 0, "code": 0, **ENDED}, b"")
    assert sight.failed() == set()
    sight.take({"op": "failed", "rank": 0, "kind": "exception", "exit_code": 1}, b"")
    sight.lose(range(1, 2), "its stream ended")
    assert sight.failed() == {0, 1}

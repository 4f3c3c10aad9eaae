"""What is seen of the ranks of a host that is lost."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.head.sight import Clock, Sight


def seen_at(ended_s: float, lost_s: float, **ended: Any) -> Any:
    """Rank 0, which ended, when its host is lost."""
    now = SimpleNamespace(s=0.0)
    job = SimpleNamespace(ranks=lambda: range(2), shares=lambda: [2], job_id="j", device="CPU")
    clock = Clock(lambda: now.s)
    sight = Sight(cast(Job, job), 0, clock)
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

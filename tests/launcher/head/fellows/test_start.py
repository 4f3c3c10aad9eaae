"""A host that cannot reach host 0, where no launcher leads: told before any rank starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.host import HostFacts
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.placement import Meeting
from torch_xdist.launcher.head.fellows.start import StartAmongFellows
from torch_xdist.launcher.head.hosts import Hosts, HostState


def second_of_two(told: dict[str, Any] | None) -> tuple[StartAmongFellows, list[Any], HostState]:
    """The start on host 1, what it has sent to its agent, and that agent's state."""
    part = HostOfMany("a slice", 1, 2, "10.0.0.1", 8547, ("10.0.0.1", "10.0.0.2"))
    job = Job("function", ["train.py"], 2, part=part)
    sent: list[Any] = []
    state = HostState(0, agent=None, ranks=job.ranks())  # type: ignore[arg-type]
    state.send = lambda message, blob: sent.append(message)
    state.facts = HostFacts("b", port=1)
    fellows = SimpleNamespace(
        part=part, is_first=False, are_all_present=True, meeting=told, absent=list
    )
    about = job, 0, Hosts([state]), Meeting(), "", print, print
    return StartAmongFellows(fellows, *about), sent, state  # type: ignore[arg-type]


def test_a_host_tries_the_way_that_host_0_has_told_before_its_ranks_start() -> None:
    told = {"coordinator": "10.0.0.1:4000", "addr": "10.0.0.1", "port": 4001}
    start, sent, state = second_of_two(told)
    start._begin_meeting()
    assert sent == [{"op": "reach", "address": "10.0.0.1:4000", "limit_s": 10.0}]
    start.reach(state, "")
    environ = sent[1]["ranks"][0]["env"]
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("10.0.0.1", "4001")
    assert (environ["XLA_RUN_COORDINATOR"], environ["RANK"]) == ("10.0.0.1:4000", "2")


def test_a_host_waits_for_what_host_0_tells() -> None:
    start, sent, _ = second_of_two(None)
    start._begin_meeting()
    assert sent == []


def test_a_closed_way_is_told_with_both_hosts() -> None:
    start, _, state = second_of_two(None)
    told = r"host 10.0.0.2 \(worker 1\) cannot reach host 10.0.0.1 \(worker 0\) at .* \(timed out\)"
    with pytest.raises(HostError, match=told + "; hosts must reach each other on any port: open"):
        start.reach(state, "timed out")

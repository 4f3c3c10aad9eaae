"""Nodes that come, or do not, before an attempt that may begin with fewer than all."""

import time
from collections.abc import Callable, Collection

from torch_xdist.launcher.attempts.gathering import Gathering
from torch_xdist.launcher.attempts.roster import LineUp, Roster
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.settings import Timeouts

HOSTS = [Host(f"node{number}", slots=1) for number in range(3)]


def gathering(
    there: Callable[[], Collection[int]],
    wait_s: float = 0.3,
    told: list[str] | None = None,
    is_stopped: Callable[[float], bool] | None = None,
) -> Gathering:
    job = Job(
        "program",
        ["true"],
        3,
        hosts=HOSTS,
        way="nodes",
        way_command=["10.0.0.1", "29400"],
        least_hosts=2,
        elastic_wait_s=wait_s,
        timeouts=Timeouts(notice_s=0.2),
    )

    def stopped(for_s: float) -> bool:
        time.sleep(for_s)
        return False

    note = (told if told is not None else []).append
    return Gathering(
        job, Roster(HOSTS, least=2, first_stays=True), there, note, is_stopped or stopped
    )


def count(found: LineUp | None) -> int:
    return len(found.hosts) if found is not None else 0


def test_it_begins_at_once_when_all_nodes_are_there() -> None:
    since_s = time.monotonic()
    assert count(gathering(lambda: (0, 1, 2), wait_s=60.0).wait(60.0)) == 3
    assert time.monotonic() - since_s < 15


def test_enough_nodes_wait_a_while_for_the_others() -> None:
    since_s = time.monotonic()
    assert count(gathering(lambda: (0, 2)).wait(60.0)) == 2
    assert 0.3 <= time.monotonic() - since_s < 15


def test_a_node_that_comes_while_they_wait_takes_part() -> None:
    since_s = time.monotonic()

    def there() -> tuple[int, ...]:
        return (0, 1, 2) if time.monotonic() - since_s > 0.2 else (0, 1)

    assert count(gathering(there, wait_s=60.0).wait(60.0)) == 3


def test_too_few_nodes_wait_until_the_limit_and_say_who_is_missing() -> None:
    told: list[str] = []
    few = gathering(lambda: (0,), told=told)
    assert few.wait(0.6) is None
    missing = "1 of 3 are there, at least 2 are needed (not yet at 10.0.0.1:29400: node1, node2)"
    assert few.missing() == missing
    assert told == [f"waiting for nodes: {missing}"]


def test_a_job_that_is_told_to_stop_waits_no_longer() -> None:
    since_s = time.monotonic()
    assert gathering(lambda: (0,), is_stopped=lambda _: True).wait(60.0) is None
    assert time.monotonic() - since_s < 15

"""The hosts of a job's attempts, with a backend that only takes note."""

from collections.abc import Sequence
from typing import Any, cast

from torch_xdist.launcher.attempts.crew import Crew
from torch_xdist.launcher.backends.backend import Backend
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job


class Taken:
    """A backend that is told the hosts of each attempt, `hosts`, by name."""

    def __init__(self) -> None:
        self.hosts: list[str] = []

    def take(self, hosts: Sequence[Host]) -> None:
        self.hosts = [host.name for host in hosts]

    def there(self) -> Sequence[int]:
        return [0]


def crew(*, is_stopped: bool = False, **more: Any) -> tuple[Crew, Taken, list[str]]:
    facts = {"hosts": [Host("a", slots=2), Host("b", slots=1)], "way": "ssh", **more}
    job = Job("program", ["true"], 3, **facts)
    backend, told = Taken(), list[str]()
    return Crew(job, cast(Backend, backend), told.append, lambda _: is_stopped), backend, told


def test_a_job_of_this_host_always_has_its_host() -> None:
    found, backend, _ = crew(hosts=[])
    assert found.line_up(0.0) and backend.hosts == []
    assert not found.goes_on_without({0: ""}, "why")


def test_the_backend_and_the_job_of_the_next_attempt_have_the_hosts_of_it() -> None:
    found, backend, told = crew(least_hosts=1)
    assert found.line_up(0.0) and backend.hosts == ["a", "b"]
    assert not told and found.job.nprocs == 3
    found.next_attempt({0: "no word from it for 10 s"})
    assert found.line_up(0.0) and backend.hosts == ["b"]
    assert found.job.nprocs == 1 and [host.name for host in found.job.hosts] == ["b"]
    news = "host a was lost (no word from it for 10 s); the job goes on with 1 of 2 hosts"
    assert told == found.changes == [news]


def test_an_attempt_that_cannot_begin_is_tried_without_the_host_it_is_due_to() -> None:
    found, backend, told = crew(spares=[Host("c")])
    assert found.line_up(0.0)
    assert found.goes_on_without({1: ""}, "host b: it cannot be reached")
    assert backend.hosts == ["a", "c"] and found.job.nprocs == 3
    assert told == [
        "host b: it cannot be reached",
        "host b could not take part; spare c takes its place (0 of 1 spares left)",
    ]
    assert not found.goes_on_without({1: ""}, "host c: neither")
    assert found.shortage() == "no spare is left"


def test_a_job_that_was_told_to_stop_or_has_no_other_host_tries_nothing() -> None:
    stopped, _, _ = crew(is_stopped=True, spares=[Host("c")])
    assert stopped.line_up(0.0) and not stopped.goes_on_without({1: ""}, "why")
    plain, _, told = crew()
    assert plain.line_up(0.0) and not plain.goes_on_without({1: ""}, "why")
    assert plain.shortage() == "" and not told


def test_nodes_that_do_not_come_are_told() -> None:
    more = {"way": "nodes", "way_command": ["10.0.0.1", "29400"], "elastic_wait_s": 0.0}
    found, backend, _ = crew(least_hosts=1, **more)
    assert found.line_up(5.0) and backend.hosts == ["a"]
    assert "(not yet at 10.0.0.1:29400: b)" in found.shortage()

"""What is known of the hosts of an attempt."""

from types import SimpleNamespace
from typing import Any, cast

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.records import Failure
from torch_xdist.launcher.head.hosts import Hosts, HostState


def hosts(*lives_on_s: float, gone: tuple[int, ...] = ()) -> Hosts:
    """One rank each; their agents live on for so long."""
    return Hosts(
        [
            HostState(
                index,
                cast(Any, SimpleNamespace(lives_on_s=lambda left=left: left)),
                range(index, index + 1),
                facts=cast(Any, "said"),
                gone=index in gone,
            )
            for index, left in enumerate(lives_on_s)
        ]
    )


def test_ranks_of_lost_hosts_may_run_until_the_last_of_their_agents_ends_them() -> None:
    assert hosts(5.0, 1.0).fence_s() == 0.0, "no host is lost"
    assert hosts(5.0, 1.0, 3.0, gone=(1, 2)).fence_s() == 3.0


def test_an_ending_is_due_to_hosts_that_were_lost_and_not_to_those_whose_ranks_failed() -> None:
    lost = Failure(1, "host_lost", message="its stream ended\nmore")
    crashed = Failure(0, "exception")
    assert hosts(0.0, 0.0, gone=(1,)).blamed((lost, crashed), 73) == {1: "its stream ended"}
    assert hosts(0.0, 0.0).blamed((crashed,), 1) == {}
    launch = Failure(1, "launch", message="no room")
    assert hosts(0.0, 0.0).blamed((launch,), 70) == {1: "no room"}


def test_a_host_that_has_not_said_a_word_in_time_is_to_blame() -> None:
    found = hosts(0.0, 0.0)
    found.states[1].facts = None
    late = Failure(1, "launch", message="rank 1 did not arrive")
    assert found.blamed((late,), ExitCode.RENDEZVOUS) == {1: ""}

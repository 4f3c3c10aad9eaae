"""What heads without a launcher say to each other: real sockets on loopback, no job."""

import math
import queue
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.head.fellows.links import FellowLinks
from torch_xdist.launcher.on_host.coordinator import free_port

HELLO = {"version": 1, "hosts": 3, "ranks": 2, "device": "CPU"}


class Fellow:
    """One host of three, and what it hears."""

    def __init__(
        self, host: int, port: int, beat_s: float = 0.2, lost_s: float = 1.5, **hello: Any
    ) -> None:
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        part = HostOfMany("a slice", host, 3, "127.0.0.1", port, ("a", "b", "c"))
        said = {**HELLO, **hello}
        self.links = FellowLinks(part, said, self.heard.put, beat_s, lost_s)

    def hears(self, say: str, **wanted: Any) -> dict[str, Any]:
        """The next message of this kind that has these values."""
        end_s = time.monotonic() + 10
        while True:
            message = self.heard.get(timeout=max(0.01, end_s - time.monotonic()))
            if message["say"] == say and wanted.items() <= message.items():
                return message


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def three(port: int) -> Iterator[list[Fellow]]:
    # The others dial until host 0 is there.
    made = [Fellow(host, port) for host in (2, 1, 0)][::-1]
    for one in made:
        one.hears("present", hosts=[0, 1, 2])
    yield made
    for one in made:
        one.links.close()


def test_what_one_says_all_others_hear_with_its_number(three: list[Fellow]) -> None:
    three[1].links.say({"say": "finished"})
    assert [three[host].hears("finished")["host"] for host in (0, 2)] == [1, 1]
    three[0].links.say({"say": "meet", "coordinator": "x:1"})
    assert [three[host].hears("meet")["coordinator"] for host in (1, 2)] == ["x:1", "x:1"]


def test_one_that_goes_without_a_word_is_lost_to_all(three: list[Fellow]) -> None:
    three[2].links.close()
    for host in (0, 1):
        assert three[host].hears("over", host=2)["lost"] == "its connection ended"


def test_one_that_has_told_its_end_is_not_lost(three: list[Fellow]) -> None:
    three[1].links.say({"say": "over", "exit_code": 0, "text": ""})
    three[1].links.close()
    assert "lost" not in three[0].hears("over", host=1)
    assert three[0].hears("left")["host"] == 1


def test_host_0_listens_until_all_are_there(three: list[Fellow], port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_one_that_goes_before_all_are_there_may_come_again(port: int) -> None:
    first, second = Fellow(0, port), Fellow(1, port)
    first.hears("present", hosts=[0, 1])
    second.links.close()
    first.hears("present", hosts=[0])
    again, third = Fellow(1, port), Fellow(2, port)
    first.hears("present", hosts=[0, 1, 2])
    for one in (first, again, third):
        one.links.close()


def test_where_no_silence_is_a_loss_all_else_is_as_before(port: int) -> None:
    made = [Fellow(host, port, beat_s=math.inf, lost_s=math.inf) for host in range(3)]
    for one in made:
        one.hears("present", hosts=[0, 1, 2])
    made[1].links.close()
    assert made[2].hears("over", host=1)["lost"] == "its connection ended"
    for one in made:
        one.links.close()


@pytest.mark.parametrize(
    ("hello", "told"),
    [
        ({"version": 0}, "host b (worker 1) has another release of torch-xdist; install the same"),
        ({"hosts": 4}, "host b (worker 1) counts 4 hosts, host 0 3; the script must be started a"),
        ({"ranks": 4}, "host b (worker 1) counts 4 ranks on it, host 0 2; the script must be sta"),
        ({"device": "TPU"}, "host b (worker 1) counts TPU as its device, host 0 CPU; the script m"),
    ],
)
def test_hosts_that_are_not_alike_are_told_so_on_both(
    port: int, hello: dict[str, Any], told: str
) -> None:
    first, second = Fellow(0, port), Fellow(1, port, **hello)
    for one in (first, second):
        message = one.hears("over")
        assert message["exit_code"] == 71 and message["text"].startswith(told)
        one.links.close()


def test_where_host_0_cannot_listen_is_told(port: int) -> None:
    with pytest.raises(
        HostError, match=r"host x \(worker 0\) cannot listen at 192.0.2.1:.*; set MAS"
    ):
        part = HostOfMany("a slice", 0, 2, "192.0.2.1", port, ("x", "y"))
        FellowLinks(part, HELLO, print, 1.0, 5.0)

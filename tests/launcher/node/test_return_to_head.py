"""A node's way back to node 0, with a dialer that answers what the test says."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import AuthError, HostError, PreflightError
from torch_xdist.launcher.node import return_to_head
from torch_xdist.launcher.node.return_to_head import ReturnToHead
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.resuming import Granting
from torch_xdist.launcher.sealed import as_head, as_node

SECRET = b"\x5e" * 32
REFUSED = "connection refused"


@dataclass
class Dialer:
    """Each try takes the next of `answers`; without one it finds nobody."""

    name: str = "node 0 at a:29400"
    answers: list[Callable] = field(default_factory=list)
    tries: int = 0

    def once(self, limit_s: float) -> Any:
        self.tries += 1
        return (self.answers.pop(0) if self.answers else nobody)()


def nobody() -> Any:
    raise HostError("timed out")


def refused() -> Any:
    raise HostError(REFUSED) from ConnectionRefusedError()


def sealed_pair() -> tuple[Any, Any]:
    """The two ends of a connection whose sides have proven the secret."""
    near, far = socket.socketpair()
    found: list[Any] = []
    other = threading.Thread(target=lambda: found.append(as_head(far, SECRET, "job", 5)))
    other.start()
    ours = as_node(near, SECRET, 5)
    other.join(5)
    return (near, ours), (far, found[0])


class Lost:
    """A stream between a node and its head, whose connection can be ended."""

    def __init__(self) -> None:
        ours, theirs = sealed_pair()
        self.node = PipeStream.over(Connection.over(*ours))
        self._far = Connection.over(*theirs)
        self.head = PipeStream.over(self._far)
        self.said: list[str] = []
        self.why: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.dialer = Dialer()
        self.granting = Granting(self.head)
        self.back = ReturnToHead(self.dialer, 1, "5e", self.node, self.said.append)  # type: ignore[arg-type]
        limits = {"beat_s": 0.1, "lost_s": 5.0, "within_s": 10.0}
        self.node.start(
            lambda message, _: self.heard.put(message), self.why.put,
            on_trouble=self.back.try_for, **limits,
        )  # fmt: skip
        self.head.start(lambda *_: None, lambda _: None, **limits)

    def cut(self) -> None:
        self.head.suspend()

    def grants(self) -> Any:
        """What a dialer finds: a head that lets the node go on."""
        ours, theirs = sealed_pair()
        line = Connection.over(*theirs)

        def grant() -> None:
            first = line.first(5)
            assert first is not None and first.message["session"] == "5e"
            self.granting.over(line, first.message)

        threading.Thread(target=grant, daemon=True).start()
        return ours

    @staticmethod
    def refuses() -> Any:
        """A head that has given the node up."""
        ours, theirs = sealed_pair()
        line = Connection.over(*theirs)

        def refuse() -> None:
            line.first(5)
            line.say({"op": "refused", "exit_code": 73, "text": "it was lost to the job"})

        threading.Thread(target=refuse, daemon=True).start()
        return ours

    @staticmethod
    def hangs_up() -> Any:
        """Somebody with the secret who goes before he has answered."""
        ours, theirs = sealed_pair()
        theirs[0].close()
        return ours


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lost]:
    monkeypatch.setattr(return_to_head, "_PAUSES_S", (0.02,))
    made = Lost()
    yield made
    for stream in (made.node, made.head):
        stream.give_up("the test is over")
        stream.close(0.2)


def test_what_was_said_meanwhile_comes_once_over_the_next_connection(lost: Lost) -> None:
    lost.dialer.answers = [nobody, lost.grants]
    lost.cut()
    for number in range(20):
        lost.head.send({"op": "line", "number": number})
    assert [lost.heard.get(timeout=5)["number"] for _ in range(20)] == [*range(20)]
    assert lost.said[0].startswith("connection to node 0 at a:29400 lost (its stream ended), tryin")
    assert not lost.node.is_over


def test_three_refusals_in_a_row_say_that_the_job_has_ended(lost: Lost) -> None:
    lost.dialer.answers = [refused, refused, nobody, refused, refused, refused]
    lost.cut()
    assert lost.why.get(timeout=5).startswith("its stream ended")
    assert lost.dialer.tries == 6


@pytest.mark.parametrize(
    "error", [AuthError("it does not know the secret"), PreflightError("it speaks version 9")]
)
def test_another_secret_or_version_there_is_the_end_at_once(lost: Lost, error: Exception) -> None:
    def fails() -> Any:
        raise error

    lost.dialer.answers = [fails]
    lost.cut()
    assert lost.why.get(timeout=5) == str(error) and lost.dialer.tries == 1


def test_a_node_that_was_given_up_hears_why(lost: Lost) -> None:
    lost.dialer.answers = [lost.refuses]
    lost.cut()
    assert lost.why.get(timeout=5) == "its stream ended, and it was lost to the job"


def test_a_connection_that_ends_before_an_answer_is_one_try_of_several(lost: Lost) -> None:
    lost.dialer.answers = [lost.hangs_up, lost.hangs_up, lost.grants]
    lost.cut()
    lost.head.send({"op": "line", "number": 7})
    assert lost.heard.get(timeout=5)["number"] == 7 and lost.dialer.tries == 3

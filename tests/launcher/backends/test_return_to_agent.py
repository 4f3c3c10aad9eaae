"""The head's way back to an agent, over commands of this machine in the place of ssh."""

import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from torch_xdist.launcher.backends import return_to_agent
from torch_xdist.launcher.backends.last_word import LastWord
from torch_xdist.launcher.backends.over_command import FIRST_WORDS
from torch_xdist.launcher.backends.return_to_agent import ReturnToAgent, new_place
from torch_xdist.launcher.on_host.reconnection.resumption import Resumption
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.system import process_tree
from torch_xdist.system.process import Child

THERE = (sys.executable, "-P", "-c", FIRST_WORDS)
REFUSED = ("sh", "-c", "echo ssh: connect to host b port 22: Connection refused >&2; exit 255")
MARK = "XDIST_TEST_MARK=return"


class Lost:
    """A stream between a head and an agent of this machine, whose connection can be ended."""

    def __init__(self) -> None:
        to_head, agent_writes = os.pipe()
        to_agent, head_writes = os.pipe()
        self.agent = PipeStream(to_agent, agent_writes, is_head=False)
        self.head = PipeStream(to_head, head_writes, is_head=True)
        self.place, self.said = new_place(), []
        self.why: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.took: list[tuple[Child, int, LastWord]] = []
        limits = {"beat_s": 0.1, "lost_s": 20.0, "within_s": 30.0}
        self.agent.start(lambda message, _: self.heard.put(message), lambda _: None, **limits)
        self._limits = limits

    def begin(
        self,
        command: Sequence[str],
        *,
        tries_s: Sequence[float] = (5.0, 10.0, 15.0),
        kills_all: bool = False,
    ) -> ReturnToAgent:
        """The head begins, with this as its way back."""
        back = ReturnToAgent(
            *("b", command, dict([MARK.split("=")], PATH=os.environ["PATH"]), {}, self.place),
            *(self.head, self.said.append, lambda *found: self.took.append(found)),
            *(tries_s, kills_all),
        )
        self.back = back
        self.head.start(lambda *_: None, self.why.put, on_trouble=back.try_for, **self._limits)
        end_s = time.monotonic() + 10
        while not self.head.has_begun:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        return back

    def close(self) -> None:
        self.back.stop()
        for stream in (self.head, self.agent):
            stream.give_up("the test is over")
            stream.close(0.2)
        for process, stderr, last_word in self.took:
            last_word.keep_back()
            process.kill()
            process.wait()
            process.close()
            os.close(stderr)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lost]:
    monkeypatch.setattr(return_to_agent, "_PAUSES_S", (0.02,))
    made = Lost()
    yield made
    made.close()
    wait_until(lambda: not process_tree.marked(MARK))


def wait_until(is_so: Callable[[], bool], limit_s: float = 10.0) -> None:
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_what_was_said_meanwhile_comes_once_over_the_next_process(lost: Lost) -> None:
    Resumption(lost.place["name"], lost.place["secret"], lost.agent)
    lost.begin(THERE)
    lost.agent.suspend()
    for number in range(20):
        lost.head.send({"op": "line", "number": number})
    assert [lost.heard.get(timeout=15)["number"] for _ in range(20)] == [*range(20)]
    assert len(lost.took) == 1 and not lost.head.is_over
    assert lost.said[0].startswith("connection to host b lost (its stream ended), waiting up to ")


def test_an_agent_that_has_another_secret_is_not_gone_on_with(lost: Lost) -> None:
    Resumption(lost.place["name"], "0f" * 32, lost.agent)
    lost.begin(THERE)
    lost.agent.suspend()
    wait_until(lambda: bool(lost.said))
    time.sleep(1)
    assert not lost.took and lost.heard.empty()


def test_where_its_agent_is_not_there_any_more_that_is_the_end(lost: Lost) -> None:
    lost.begin(THERE)
    lost.agent.suspend()
    why = lost.why.get(timeout=15)
    assert why.startswith("its stream ended, and its agent is not there any more (connection refus")
    assert not lost.took


def test_a_machine_that_refuses_for_long_enough_has_nothing_to_come_back_to(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(return_to_agent, "_REFUSALS_S", 0.3)
    lost.begin(REFUSED)
    lost.agent.suspend()
    since_s = time.monotonic()
    assert lost.why.get(timeout=15) == "its stream ended"
    assert time.monotonic() - since_s >= 0.3


@pytest.mark.parametrize("command", [("/no/such/ssh",), ("sh", "-c", "exit 255"), ("echo", "hi")])
def test_a_command_that_fails_is_tried_again(lost: Lost, command: Sequence[str]) -> None:
    back, tries = lost.begin(command), []
    once = back._once

    def counted(limit_s: float) -> bool:
        tries.append(limit_s)
        return once(limit_s)

    back._once = counted  # type: ignore[method-assign]
    lost.agent.suspend()
    wait_until(lambda: len(tries) > 4)
    # A later try may take longer.
    assert tries[:4] == [5.0, 10.0, 15.0, 15.0] and lost.why.empty() and not lost.took


def test_a_command_that_hangs_costs_one_try(lost: Lost) -> None:
    lost.begin(("sleep", "60"), tries_s=(0.3,))
    lost.agent.suspend()
    first = None

    def is_another() -> bool:
        nonlocal first
        alive = process_tree.marked(MARK)
        first = first or alive
        return bool(alive) and not alive & first

    wait_until(is_another)


def test_what_it_has_started_ends_when_it_is_stopped(lost: Lost) -> None:
    back = lost.begin(("sleep", "60"))
    lost.agent.suspend()
    wait_until(lambda: bool(process_tree.marked(MARK)))
    back.stop()
    wait_until(lambda: not process_tree.marked(MARK))
    assert not lost.took


def test_what_its_command_has_started_ends_with_it_where_that_is_asked_for(lost: Lost) -> None:
    back = lost.begin(("sh", "-c", "sleep 60 & sleep 60"), kills_all=True)
    lost.agent.suspend()
    wait_until(lambda: len(process_tree.marked(MARK)) == 3)
    back.stop()
    wait_until(lambda: not process_tree.marked(MARK))


def test_each_agent_has_a_place_and_a_secret_of_its_own() -> None:
    one, other = new_place(), new_place()
    assert len(one["secret"]) == 64 and not set(one.values()) & set(other.values())

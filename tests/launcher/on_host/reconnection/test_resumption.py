"""Where an agent is found again: by the same user's processes, and with the head's secret."""

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from torch_xdist.launcher.connection import LAST_WORD, Connection
from torch_xdist.launcher.on_host.reconnection.resumption import Resumption
from torch_xdist.launcher.pipe_stream import PipeStream

LIMITS = {"beat_s": 0.1, "lost_s": 10.0, "within_s": 20.0}
RELAY = (sys.executable, "-m", "torch_xdist.launcher.on_host.reconnection.relay")
SECRET = "5e" * 16


class Agent:
    """A stream that has lost its connection, and listens for another one."""

    def __init__(self) -> None:
        self.name = f"xla-run-{secrets.token_hex(8)}"
        read, self._orders = os.pipe()
        self._news, write = os.pipe()
        self.stream = PipeStream(read, write, is_head=False)
        self.over = threading.Event()
        self.stream.start(lambda *_: None, lambda _: self.over.set(), **LIMITS)
        self.stream.suspend()
        Resumption(self.name, SECRET, self.stream)


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.stream.give_up("the test is over")
    os.close(made._orders)
    os.close(made._news)


class Relay:
    """The relay's process, and this end of the way through it."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [*RELAY, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin and self.process.stdout
        ends = os.dup(self.process.stdout.fileno()), os.dup(self.process.stdin.fileno())
        self.process.stdin.close()
        self.line = Connection(*ends, awaits_mark=True)
        assert self.line.begins(20)

    def ask(self, **known: object) -> dict | None:
        self.line.say({"op": "resume", "try": 1, "came": 0, **known})
        answer = self.line.first(10)
        return answer.message if answer is not None else None


def test_who_has_the_secret_goes_on(agent: Agent) -> None:
    relay = Relay(agent.name)
    assert relay.ask(secret=SECRET) == {"op": "resumed", "came": 0}
    assert agent.stream.line is not None or not agent.over.is_set()
    agent.stream.send({"op": "news"})
    while (frame := relay.line.first(10)) is not None and frame.message["op"] == "here":
        pass
    assert frame is not None and frame.message["op"] == "news"
    relay.line.close()
    assert relay.process.wait(10) == 0
    relay.process.stdout.close()


@pytest.mark.parametrize("secret", ["00" * 16, "", None])
def test_who_has_not_hears_nothing(agent: Agent, secret: str | None) -> None:
    relay = Relay(agent.name)
    assert relay.ask(secret=secret) is None
    assert agent.stream.line is None and not agent.over.is_set()
    relay.line.close()
    assert relay.process.wait(10) == 0
    relay.process.stdout.close()


def test_the_last_word_of_a_head_comes_through(agent: Agent) -> None:
    relay = Relay(agent.name)
    assert relay.ask(secret=SECRET) is not None
    os.write(relay.line.write_fd, LAST_WORD)
    relay.line.end_writing()
    assert agent.over.wait(10)
    assert relay.process.wait(10) == 0
    relay.line.close()
    relay.process.stdout.close()


def test_an_end_without_it_is_that_of_the_connection(agent: Agent) -> None:
    relay = Relay(agent.name)
    assert relay.ask(secret=SECRET) is not None
    relay.line.end_writing()
    assert relay.process.wait(10) == 0
    assert not agent.over.wait(0.5)
    relay.line.close()
    relay.process.stdout.close()


def test_where_nobody_listens_it_is_said_why() -> None:
    relay = Relay("xla-run-nobody")
    first = relay.line.first(10)
    assert first is not None and first.message["op"] == "refused"
    assert first.message["text"] == "its agent is not there any more (connection refused)"
    relay.line.close()
    assert relay.process.wait(10) == 0
    relay.process.stdout.close()

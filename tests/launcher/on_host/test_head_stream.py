"""What an agent tells its head: news always, lines of ranks where they are wanted and fit."""

import queue
import socket
from collections.abc import Iterator

import pytest

from torch_xdist.launcher import control
from torch_xdist.launcher.on_host import head_stream
from torch_xdist.launcher.on_host.head_stream import HeadStream, SocketToHead

Heard = queue.SimpleQueue[tuple[int, dict, bytes]]
Orders = queue.SimpleQueue[tuple[dict, bytes]]


@pytest.fixture
def heard() -> Heard:
    """What the head was told."""
    return queue.SimpleQueue()


@pytest.fixture
def orders() -> Orders:
    """What the agent was told."""
    return queue.SimpleQueue()


@pytest.fixture
def stream(heard: Heard, orders: Orders) -> Iterator[HeadStream]:
    server = control.Server("right", lambda *told: heard.put(told), lambda message: {})
    server.send(3, {"op": "start"}, b"blob")
    config = {"address": server.address, "token": "right", "host_index": 3}
    ours, theirs = socket.socketpair()
    way = SocketToHead(theirs)
    made = HeadStream(way, config, {"facts": {"name": "a17"}}, lambda *order: orders.put(order))
    assert heard.get(timeout=10)[1]["facts"] == {"name": "a17"}
    yield made
    made.close()
    ours.close()
    theirs.close()
    server.close()


def test_news_go_out_and_orders_come_in(stream: HeadStream, heard: Heard, orders: Orders) -> None:
    assert orders.get(timeout=10) == ({"op": "start"}, b"blob")
    stream.send({"op": "finished", "rank": 0}, b"result")
    assert heard.get(timeout=10) == (3, {"op": "finished", "rank": 0}, b"result")
    stream.close()
    assert orders.get(timeout=10)[0]["op"] == "lost"


def test_lines_of_the_ranks_that_are_shown_go_out(stream: HeadStream, heard: Heard) -> None:
    stream.show_lines_of([1])
    stream.show(0, ["not wanted"], "")
    stream.show(1, ["wanted"], "> ")
    log = {"op": "log", "rank": 1, "lines": ["wanted"], "unfinished": "> ", "unshown": 0}
    assert heard.get(timeout=10) == (3, log, b"")


def test_lines_that_a_slow_head_cannot_take_are_counted(
    stream: HeadStream, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.show_lines_of([1])
    with monkeypatch.context() as slow:
        slow.setattr(head_stream, "_MOST_PENDING_BYTES", -1)
        stream.show(1, ["a", "b"], "")
        stream.show(1, ["c"], "")
    stream.show(1, ["d"], "")
    log = {"op": "log", "rank": 1, "lines": ["d"], "unfinished": "", "unshown": 3}
    assert heard.get(timeout=10) == (3, log, b"")

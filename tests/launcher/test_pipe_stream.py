"""The control plane in a pair of pipes: what goes through, what is noise, when a side is lost."""

import os
import queue
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from torch_xdist.launcher import connection, pipe_stream
from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.sealed import as_head, as_node
from torch_xdist.system import frames

LIMITS = {"beat_s": 0.05, "lost_s": 0.4}
SECRET = b"s" * 32


@dataclass
class Pair:
    """Both ends, and what each has heard."""

    head: PipeStream
    agent: PipeStream
    to_head: int
    heard: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    closed: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)

    def start(self, *streams: PipeStream) -> None:
        for stream in streams:
            stream.start(lambda *said: self.heard.put(said), self.closed.put, **LIMITS)


@pytest.fixture
def pair() -> Iterator[Pair]:
    orders, orders_write = os.pipe()
    news, news_write = os.pipe()
    kept = os.dup(news_write)
    head = PipeStream(news, orders_write, is_head=True)
    made = Pair(head, PipeStream(orders, news_write, is_head=False), kept)
    yield made
    os.close(kept)
    for stream in (made.head, made.agent):
        stream.close(0.2)


def test_messages_go_both_ways(pair: Pair) -> None:
    pair.head.send({"op": "config"}, b"blob")
    pair.head.start(lambda *said: pair.heard.put(said), pair.closed.put, **LIMITS)
    first = pair.agent.first()
    assert first is not None and (first.message, first.blob) == ({"op": "config"}, b"blob")
    pair.start(pair.agent)
    pair.agent.send({"op": "hello"})
    assert pair.heard.get(timeout=5) == ({"op": "hello"}, b"")


def test_nothing_is_heard_of_the_signs_of_life(pair: Pair) -> None:
    pair.start(pair.head, pair.agent)
    time.sleep(0.6)
    assert pair.heard.empty() and pair.closed.empty()
    assert pair.head.silent_s() < 0.3


@pytest.mark.parametrize(("has_come", "wanted"), [(False, {"beats"}), (True, {"beats", "here"})])
def test_a_message_is_a_sign_of_life_itself_until_another_is_to_be_acknowledged(
    has_come: bool, wanted: set[str]
) -> None:
    orders, orders_write = os.pipe()
    news, news_write = os.pipe()
    stream = PipeStream(orders, news_write, is_head=False)
    stream.start(lambda *_: None, lambda why: None, beat_s=0.2, lost_s=20.0)
    if has_come:
        os.write(orders_write, frames.encode({"op": "config"}))
    for _ in range(30):
        stream.send({"op": "beats"})
        time.sleep(0.02)
    stream.close()
    with open(news, "rb") as said:
        found = frames.Decoder().feed(said.read().removeprefix(connection.MARK))
    assert {frame.message["op"] for frame in found} == wanted
    os.close(orders_write)


def test_what_is_printed_before_the_mark_is_kept_and_no_message(pair: Pair) -> None:
    os.write(pair.to_head, b"Welcome to a\nYou have mail\n")
    pair.start(pair.head, pair.agent)
    pair.agent.send({"op": "hello"})
    assert pair.heard.get(timeout=5)[0] == {"op": "hello"}
    assert pair.head.noise == "Welcome to a\nYou have mail\n"


def test_a_flood_without_a_mark_ends_the_stream(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_MOST_NOISE_BYTES", 10)
    os.write(pair.to_head, b"no agent at all")
    pair.start(pair.head)
    assert pair.closed.get(timeout=5) == "15 bytes came, and no agent among them"


def test_bytes_that_are_no_message_end_the_stream(pair: Pair) -> None:
    os.write(pair.to_head, pipe_stream.MARK + b"\xff" * 64)
    pair.start(pair.head)
    assert "JSON part" in pair.closed.get(timeout=5)


def test_a_side_that_falls_silent_is_lost(pair: Pair) -> None:
    os.write(pair.to_head, pipe_stream.MARK)
    pair.start(pair.head)
    assert pair.closed.get(timeout=5) == "no word from it for 0.4 s"
    assert pair.head.is_lost


def test_before_its_first_word_nobody_is_lost(pair: Pair) -> None:
    pair.start(pair.head)
    time.sleep(0.8)
    assert pair.closed.empty() and pair.head.silent_s() == 0.0


def test_the_end_of_the_pipe_is_the_end_of_the_stream(pair: Pair) -> None:
    pair.start(pair.agent)
    pair.head.start(lambda *_: None, lambda why: None, **LIMITS)
    pair.head.close()
    assert pair.closed.get(timeout=5) == "its stream ended"


def test_an_end_before_the_first_message_is_none(pair: Pair) -> None:
    pair.head.start(lambda *_: None, lambda why: None, **LIMITS)
    pair.head.close()
    # Signs of life may have come before it.
    while (frame := pair.agent.first()) is not None:
        assert frame.message == {"op": "here"}


def test_large_messages_arrive_whole(pair: Pair) -> None:
    pair.start(pair.head, pair.agent)
    pair.agent.send({"op": "result"}, b"x" * (8 << 20))
    message, blob = pair.heard.get(timeout=20)
    assert message == {"op": "result"} and len(blob) == 8 << 20
    # The other side may have the last byte before this one's thread has counted it.
    end_s = time.monotonic() + 20
    while pair.agent.pending_bytes >= 8 << 20 and time.monotonic() < end_s:
        time.sleep(0.01)
    assert pair.agent.pending_bytes < 8 << 20


def test_a_stream_goes_on_over_another_connection_without_a_loss_or_a_repetition() -> None:
    at_ours, at_theirs = joined()
    ours, theirs = PipeStream(*at_ours, is_head=False), PipeStream(*at_theirs, is_head=True)
    heard: queue.SimpleQueue = queue.SimpleQueue()
    again = {**LIMITS, "lost_s": 20.0, "within_s": 20.0}
    for stream, take in ((ours, lambda *_: None), (theirs, lambda *said: heard.put(said))):
        stream.start(take, lambda why: None, **again)
    # A connection without a word was never one, and its end is that of the stream.
    while not theirs.has_begun:
        time.sleep(0.01)
    for number in range(300):
        ours.send({"op": "count", "number": number})
        if number in (100, 200):
            came = ours.suspend(), theirs.suspend()
            lines = [connection.Connection(*ends, awaits_mark=False) for ends in joined()]
            ours.resume(lines[0], came[1])
            theirs.resume(lines[1], came[0])
    numbers = [heard.get(timeout=10)[0]["number"] for _ in range(300)]
    assert numbers == [*range(300)] and heard.empty()
    for stream in (ours, theirs):
        stream.close(0.2)


def joined() -> tuple[tuple[int, int], tuple[int, int]]:
    """The two ends of a pair of pipes."""
    read, their_write = os.pipe()
    their_read, write = os.pipe()
    return (read, write), (their_read, their_write)


class Side:
    """One side over a pair of pipes, and what it tells; the other is the test's own writing.

    Args:
        limits: as of `PipeStream.start`.
    """

    def __init__(self, *, is_head: bool, **limits: float) -> None:
        ours, (self.their_read, self.their_write) = joined()
        self.closed: queue.SimpleQueue = queue.SimpleQueue()
        self.troubles: queue.SimpleQueue = queue.SimpleQueue()
        self.stream = PipeStream(*ours, is_head=is_head)
        told = self.closed.put, self.troubles.put
        self.stream.start(lambda *_: None, told[0], on_trouble=told[1], beat_s=0.05, **limits)

    def hears(self, data: bytes) -> None:
        os.write(self.their_write, data)

    def hang_up(self) -> None:
        """The other side has died."""
        os.close(self.their_read)
        os.close(self.their_write)


def test_without_a_new_connection_the_other_side_is_lost_in_time() -> None:
    head = Side(is_head=True, lost_s=5.0, within_s=0.5)
    head.hears(pipe_stream.MARK)
    time.sleep(0.1)
    since_s = time.monotonic()
    head.hang_up()
    assert head.troubles.get(timeout=5) == "its stream ended"
    assert 0 < head.stream.left_s() <= 0.5 and head.stream.needs_line
    assert head.closed.get(timeout=5).endswith("and there was no new connection for 0.5 s")
    assert 0.4 < time.monotonic() - since_s < 15


def test_the_other_side_lives_on_for_as_long_as_it_waits_for_us(pair: Pair) -> None:
    assert pair.head.lives_on_s() == 0.0
    limits = {"beat_s": 0.1, "lost_s": 0.4, "within_s": 2.0}
    pair.head.start(lambda *_: None, pair.closed.put, **limits)
    os.write(pair.to_head, pipe_stream.MARK)
    time.sleep(0.2)
    assert 1.0 < pair.head.lives_on_s() < 2.1


def test_a_head_that_has_died_is_not_waited_for() -> None:
    """Its last word may stand in the middle of a message."""
    agent = Side(is_head=False, lost_s=5.0, within_s=20.0)
    agent.hears(frames.encode({"op": "news", "text": "x" * 1000})[:500])
    agent.hears(connection.LAST_WORD)
    os.close(agent.their_write)
    assert agent.closed.get(timeout=5) == "its stream ended"
    os.close(agent.their_read)


def test_a_connection_without_a_word_is_given_up_before_the_other_side_is() -> None:
    since_s = time.monotonic()
    head = Side(is_head=True, lost_s=0.4, within_s=1.0)
    head.hears(pipe_stream.MARK)
    assert head.troubles.get(timeout=5) == "no word from it for 0 s"
    assert head.stream.line is not None
    assert head.troubles.get(timeout=5) == "no word from it for 0.4 s"
    assert head.stream.line is None
    told = r"no word from it for 0\.4 s, and there was no new connection for 0\.6 s"
    assert re.fullmatch(told, head.closed.get(timeout=5)) and head.stream.is_lost
    assert 0.9 < time.monotonic() - since_s < 15
    head.hang_up()


def test_an_orderly_end_is_waited_for_no_longer_than_said() -> None:
    head = Side(is_head=True, lost_s=5.0, within_s=20.0, orderly_s=0.3)
    head.hears(pipe_stream.MARK)
    head.hang_up()
    told = "its stream ended, and there was no new connection for 0.3 s"
    assert head.closed.get(timeout=5) == told


def test_a_side_that_has_said_nothing_yet_is_waited_for_as_long_as_any_other() -> None:
    head = Side(is_head=True, lost_s=5.0, within_s=20.0)
    head.stream.suspend()
    assert 19 < head.stream.left_s() <= 20
    with pytest.raises(queue.Empty):
        head.closed.get(timeout=0.2)
    assert not head.stream.is_over
    head.hang_up()


def test_a_side_without_a_connection_is_closed_at_once() -> None:
    agent = Side(is_head=False, lost_s=5.0, within_s=20.0)
    agent.stream.suspend()
    agent.stream.send({"op": "news"})
    since_s = time.monotonic()
    agent.stream.close(5.0)
    assert time.monotonic() - since_s < 4
    agent.hang_up()


def test_the_end_of_a_side_that_we_have_parted_from_is_no_trouble() -> None:
    head = Side(is_head=True, lost_s=5.0, within_s=20.0)
    head.hears(pipe_stream.MARK)
    head.stream.part()
    head.hang_up()
    assert head.closed.get(timeout=5) == "its stream ended" and head.troubles.empty()


@pytest.mark.parametrize("expects_nothing", [True, False])
def test_a_sealed_side_without_a_connection_waits_for_another_unless_it_expects_nothing(
    expects_nothing: bool,
) -> None:
    head, node = socket.socketpair()
    with ThreadPoolExecutor() as pool, head:
        pool.submit(as_head, head, SECRET, "job", 5)
        proven = pool.submit(as_node, node, SECRET, 5).result()
    stream = PipeStream.over(Connection.over(node, proven))
    stream.start(lambda *_: None, lambda why: None, beat_s=0.05, lost_s=20.0, within_s=20.0)
    while stream.line is not None:
        time.sleep(0.01)
    stream.send({"op": "leave"})
    if expects_nothing:
        stream.part()
    since_s = time.monotonic()
    stream.close(3.0)
    assert (time.monotonic() - since_s < 2.5) == expects_nothing
    assert stream.is_over

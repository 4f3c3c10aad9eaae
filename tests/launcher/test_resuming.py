"""One side asks whether a stream goes on over another connection, the other one grants it."""

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.resuming import Asking, Granting

LIMITS = {"beat_s": 0.05, "lost_s": 5.0, "within_s": 20.0}


@dataclass
class Pair:
    """Two ends of a stream, and why the asking one is over."""

    asks: PipeStream
    grants: PipeStream
    why: queue.SimpleQueue


@pytest.fixture
def pair() -> Iterator[Pair]:
    to_grants, asks_write = os.pipe()
    to_asks, grants_write = os.pipe()
    asks = PipeStream(to_asks, asks_write, is_head=False)
    grants = PipeStream(to_grants, grants_write, is_head=True)
    made = Pair(asks, grants, queue.SimpleQueue())
    asks.start(lambda *_: None, made.why.put, **LIMITS)
    grants.start(lambda *_: None, lambda _: None, **LIMITS)
    # Before its mark there is no stream that could go on: nobody makes another connection then.
    until_s = time.monotonic() + 10
    while not grants.has_begun and time.monotonic() < until_s:
        time.sleep(0.001)
    assert grants.has_begun
    yield made
    for stream in (asks, grants):
        stream.close(0.2)


def joined() -> tuple[Connection, Connection]:
    ends = socket.socketpair()
    return Connection.over(ends[0], None), Connection.over(ends[1], None)


def asked(pair: Pair, *, answer: dict | None = None) -> bool:
    """Whether the stream goes on over a new connection; `answer` in place of the other side's."""
    near, far = joined()

    def grant() -> None:
        first = far.first(5)
        assert first is not None and first.message["op"] == "resume"
        if answer is None:
            Granting(pair.grants).over(far, first.message)
        else:
            far.say(answer)

    other = threading.Thread(target=grant)
    other.start()
    try:
        return Asking(pair.asks, {"session": "5e"}).over(near, 5)
    finally:
        other.join(5)


def test_a_stream_goes_on_where_it_is_granted(pair: Pair) -> None:
    assert asked(pair) and asked(pair)
    assert not pair.asks.is_over and pair.asks.line is not None


def test_a_refusal_ends_the_stream_with_its_words(pair: Pair) -> None:
    assert not asked(pair, answer={"op": "refused", "text": "it was lost to the job"})
    assert pair.why.get(timeout=5).endswith("replaced, and it was lost to the job")


def test_a_side_that_cannot_be_told_what_it_has_missed_is_given_up(pair: Pair) -> None:
    asked(pair, answer={"op": "resumed", "came": 10_000})
    assert "it cannot be told again what it has missed" in pair.why.get(timeout=5)


def test_who_counts_what_was_never_sent_is_refused(pair: Pair) -> None:
    _, far = joined()
    with pytest.raises(HostError, match="it has 10000 of 0 messages"):
        Granting(pair.grants).over(far, {"try": 1, "came": 10_000})


def test_an_older_connection_than_the_one_there_is_is_refused(pair: Pair) -> None:
    granting = Granting(pair.grants)
    (_, newer), (_, older) = joined(), joined()
    granting.over(newer, {"try": 2, "came": 0})
    with pytest.raises(OSError, match="there is a newer connection"):
        granting.over(older, {"try": 1, "came": 0})
    assert pair.grants.line is newer


def test_a_side_that_does_not_answer_is_tried_again(pair: Pair) -> None:
    near, _ = joined()
    with pytest.raises(OSError, match="no answer"):
        Asking(pair.asks, {}).over(near, 0.1)
    assert asked(pair)

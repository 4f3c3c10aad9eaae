"""One thread serves all that is listened to in this process."""

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Iterator

import pytest

from torch_xdist.launcher import stream_loop
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.stream_loop import Descriptors, Lines, StreamLoop

LIMITS = {"beat_s": 60.0, "lost_s": 60.0}


class Member:
    """Reads a pipe until its end, and counts its turns."""

    def __init__(self, due_s: float = math.inf) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self.at_s, self.turns, self.news = due_s, 0, queue.SimpleQueue[bytes]()
        self.error: Exception | None = None

    def descriptors(self) -> Descriptors:
        return Descriptors(self, self.read)

    def due_s(self) -> float:
        return self.at_s

    def serve(self, since_s: float, *, has_news: bool) -> bool:
        self.turns += 1
        if self.error is not None:
            raise self.error
        if time.monotonic() >= self.at_s:
            self.at_s = math.inf
            self.news.put(b"due")
        if not has_news:
            return True
        try:
            data = os.read(self.read, 100)
        except BlockingIOError:  # what had news is another one under its number by now
            return True
        self.news.put(data)
        return bool(data)


class Served:
    """A loop, and the members that it serves."""

    def __init__(self) -> None:
        self.loop, self.members = StreamLoop(), list[Member]()

    def add(self, *members: Member) -> None:
        self.members += members
        for member in members:
            self.loop.rouse(member)
        while not all(member.turns for member in members):
            time.sleep(0.01)

    def end(self) -> None:
        """Its thread ends with the last member."""
        for member in self.members:
            os.close(member.write)
        end_s = time.monotonic() + 5
        while self.loop._is_running and time.monotonic() < end_s:
            time.sleep(0.01)
        assert not self.loop._is_running
        for member in self.members:
            os.close(member.read)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.end()


def heard(member: Member) -> bytes:
    return member.news.get(timeout=5)


def test_a_hundred_members_are_one_thread_and_only_who_has_news_is_served(served: Served) -> None:
    before = threading.active_count()
    served.add(*(Member() for _ in range(100)))
    assert threading.active_count() == before + 1
    turns = sum(member.turns for member in served.members)
    os.write(served.members[7].write, b"news")
    assert heard(served.members[7]) == b"news"
    assert sum(member.turns for member in served.members) == turns + 1


def test_who_is_due_is_served_without_news(served: Served) -> None:
    due_s = time.monotonic() + 0.3
    first, second = Member(due_s), Member(due_s - 0.1)
    served.add(first, second)
    assert (heard(first), heard(second)) == (b"due", b"due")
    assert time.monotonic() >= due_s


def test_an_error_ends_its_member_alone_and_is_told(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: queue.SimpleQueue = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", told.put)
    bad, good = Member(), Member()
    bad.error = RuntimeError("a member that fails")
    served.add(bad, good)
    assert str(told.get(timeout=5).exc_value) == "a member that fails"
    os.write(bad.write, b"news")
    os.write(good.write, b"news")
    assert heard(good) == b"news" and bad.turns == 1


def test_a_descriptor_that_was_replaced_under_its_number_is_listened_to(served: Served) -> None:
    class Moving(Member):
        key = 0

        def descriptors(self) -> Descriptors:
            return Descriptors(self.key, self.read)

    member = Moving()
    served.add(member)
    other, write = os.pipe()
    os.set_blocking(other, False)
    os.dup2(other, member.read)
    os.dup2(write, member.write)
    for fd in (other, write):
        os.close(fd)
    member.key = 1
    served.add(member)
    served.members.pop()
    os.write(member.write, b"over the new one")
    assert heard(member) == b"over the new one"


def test_lines_are_told_one_by_one_to_the_end() -> None:
    read, write = os.pipe()
    told: queue.SimpleQueue = queue.SimpleQueue()
    lines = Lines(read, told.put)
    lines.start()
    os.write(write, b"one\n\n two \nth")
    assert [told.get(timeout=5) for _ in range(2)] == ["one", "two"]
    os.write(write, b"ree")
    os.close(write)
    assert told.get(timeout=5) == "three" and lines.ended.wait(5)


def test_the_streams_of_a_job_of_many_hosts_need_no_thread_each() -> None:
    before = threading.active_count()
    ends: list[tuple[PipeStream, queue.SimpleQueue, int, int]] = []
    for _ in range(64):
        (read, their_write), (their_read, write) = os.pipe(), os.pipe()
        stream = PipeStream(read, write, is_head=True)
        closed: queue.SimpleQueue = queue.SimpleQueue()
        stream.start(lambda *_: None, closed.put, **LIMITS)
        ends.append((stream, closed, their_read, their_write))
    assert threading.active_count() <= before + 1
    for stream, closed, *theirs in ends:
        for fd in theirs:
            os.close(fd)
        assert closed.get(timeout=5)
        stream.close()


def test_a_forked_child_serves_streams_of_its_own() -> None:
    read, write = os.pipe()
    Lines(read, lambda line: None).start()
    result, told = os.pipe()
    if not (child := os.fork()):
        with contextlib.suppress(BaseException):
            is_new = not stream_loop.LOOP._is_running
            os.write(told, b"anew" if is_new else b"kept")
        os._exit(0)
    os.close(told)
    assert os.read(result, 10) == b"anew"
    os.waitpid(child, 0)
    for fd in (write, result):
        os.close(fd)

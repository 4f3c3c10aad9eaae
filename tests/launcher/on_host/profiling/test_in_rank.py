"""Profiles that a rank is asked for, in this process, with a profiler of nothing."""

import os
import socket
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from torch_xdist.launcher.on_host.profiling import in_rank
from torch_xdist.launcher.on_host.profiling.in_rank import AskedProfiles
from torch_xdist.system.frames import Frame, Link, from_memory_file


def asks(identity: str) -> dict[str, Any]:
    return {"op": "profile", "id": identity, "seconds": 60.0, "python_calls": False}


class Profiler:
    """Waits until it is ended, and has found `data`."""

    def __init__(self) -> None:
        self.data, self.is_busy, self.is_cut = b"found", False, False

    def runs(self) -> bool:
        return self.is_busy

    def take(self, seconds: float, ended: threading.Event, *, python_calls: bool) -> Any:
        assert ended.wait(seconds)
        return SimpleNamespace(data=self.data, seconds=0.5, is_cut=self.is_cut)


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Profiler:
    found = Profiler()
    monkeypatch.setitem(sys.modules, "torch_xdist.debug.asked_profile", found)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
    bridge = SimpleNamespace(backends_are_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    return found


@pytest.fixture
def ends() -> Iterator[tuple[Link, AskedProfiles]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10.0)
    rank = AskedProfiles(Link(theirs))
    yield Link(ours), rank
    rank.finish()
    ours.close()
    theirs.close()


def answer(agent: Link) -> Frame:
    found = agent.receive()
    assert found is not None and found.message["op"] == "profiled"
    return found


def test_a_rank_that_finishes_tells_what_it_has_as_a_file_in_memory(ends, profiler) -> None:
    agent, rank = ends
    rank.take(asks("1"))
    rank.finish()
    told = answer(agent)
    assert told.message["bytes"] == 5 and told.message["note"] == ""
    assert from_memory_file(told.descriptors[0]) == b"found"
    os.close(told.descriptors[0])


def test_a_second_one_is_refused_unless_the_first_was_given_up(ends, profiler) -> None:
    agent, rank = ends
    rank.take(asks("1"))
    rank.take(asks("2"))
    assert answer(agent).message["why"] == "a profile of it is still being taken"
    rank.give_up({"id": "1"})
    rank.take(asks("3"))
    first = answer(agent)
    assert first.message["id"] == "1"
    rank.give_up({"id": "1"})  # which is over
    rank.finish()
    second = answer(agent)
    assert second.message["id"] == "3"
    for told in (first, second):
        os.close(told.descriptors[0])


def test_a_profile_that_is_too_large_is_not_sent(ends, profiler, monkeypatch) -> None:
    agent, rank = ends
    monkeypatch.setattr(in_rank, "MOST_BYTES", 1 << 20)
    profiler.data = bytes((2 << 20) + 1)
    rank.take(asks("1"))
    rank.finish()
    told = answer(agent)
    assert "has 2 MiB, and at most 1 are brought; take fewer" in told.message["why"]
    assert not told.descriptors


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m, _: m.delitem(sys.modules, "jax"), "it has not loaded jax"),
        (
            lambda m, _: m.delitem(sys.modules, "jax._src.xla_bridge"),
            "it has no device yet; ask again when its first step has run",
        ),
        (
            lambda m, profiler: m.setattr(profiler, "is_busy", True),
            "its program, or another tool, profiles it already",
        ),
        (lambda m, profiler: m.setattr(profiler, "take", None), "TypeError: 'NoneType' object"),
    ],
)
def test_a_rank_that_cannot_be_profiled_says_why(ends, profiler, monkeypatch, change, why) -> None:
    agent, rank = ends
    change(monkeypatch, profiler)
    rank.take(asks("1"))
    assert answer(agent).message["why"].startswith(why)


def test_a_profile_that_the_program_has_ended_says_so(ends, profiler) -> None:
    agent, rank = ends
    profiler.is_cut = True
    rank.take(asks("1"))
    rank.finish()
    told = answer(agent)
    os.close(told.descriptors[0])
    assert told.message["note"] == "it began a profile of its own, which ended this one"

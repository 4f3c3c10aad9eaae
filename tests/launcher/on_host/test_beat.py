"""The heartbeat of a rank: now and then, and at once where it begins to wait for others."""

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from torch_xdist.launcher.on_host import beat
from torch_xdist.launcher.on_host.orders import Orders
from torch_xdist.progress import PROGRESS
from torch_xdist.system.frames import Link

SELDOM_S = 60.0


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The agent's end of the link of a rank, which is this process; a read of it takes 10 s."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10.0)
    monkeypatch.setattr(beat, "_stop", type(beat._stop)())
    link = Link(theirs)
    beat.start(link, SELDOM_S, Orders(link))
    yield ours
    beat.stop()
    ours.close()


def test_a_rank_that_begins_to_wait_for_others_says_so_at_once(agent: socket.socket) -> None:
    link, began_s = Link(agent), time.monotonic()
    with PROGRESS.wait((1, 3), "all_reduce"):
        told = link.receive()
    assert told is not None and told.message["op"] == "beat"
    heart = told.message["heartbeat"]
    assert (heart["state"], heart["waits_for"], heart["waits_in"]) == (
        *("waiting", [1, 3], "all_reduce"),
    )
    assert time.monotonic() - began_s < SELDOM_S / 6


def test_whom_a_rank_waits_for_is_as_old_as_its_look_at_them(agent: socket.socket) -> None:
    link, looked_s = Link(agent), time.monotonic() - 5
    PROGRESS.look((1, 3), looked_s)
    told = link.receive()
    PROGRESS.stop_waiting()
    assert told is not None and told.message["made_s"] == looked_s
    assert told.message["heartbeat"]["waits_for"] == [1, 3]


def test_a_rank_that_goes_on_waiting_beats_no_more_often(agent: socket.socket) -> None:
    link = Link(agent)
    with PROGRESS.wait((1,)):
        assert link.receive() is not None
        agent.settimeout(3 * beat._LOOK_S)
        with pytest.raises(TimeoutError):
            link.receive()


def test_a_stack_that_changes_under_the_look_ends_no_heartbeat(
    agent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What CPython 3.11 was seen to give for the caller of a frame that had just ended.
    code = SimpleNamespace(co_filename="/somewhere/train.py")
    frame = SimpleNamespace(f_code=code, f_lineno=7, f_back={})
    main = threading.main_thread().ident
    monkeypatch.setattr(beat.sys, "_current_frames", lambda: {main: frame})
    with PROGRESS.wait((1,)):
        told = Link(agent).receive()
    assert told is not None and told.message["heartbeat"]["waits_for"] == [1]
    monkeypatch.setattr(PROGRESS, "where", "")
    assert beat.read(main)["where"] == "train.py:7"

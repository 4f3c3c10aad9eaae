"""A job's viewers, over their real socket."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.viewing import events, view, viewers
from torch_xdist.launcher.viewing.view import View
from torch_xdist.launcher.viewing.viewers import Viewers
from torch_xdist.system.process import credentials


@pytest.fixture
def shown() -> Iterator[Viewers]:
    found = Viewers(Job("program", [], 2, job_id="j"))
    with contextlib.closing(found):
        yield found


def test_a_viewer_gets_the_past_then_what_is_new_then_the_end(shown: Viewers) -> None:
    shown("note", text="before")
    told = View("j", shown.name, None).events()
    assert next(told) == ("hello", {"job": "j", "ranks": 2, "labels": None})
    assert next(told) == ("note", {"text": "before"})
    shown("attempt", number=1, token="secret", address="there")
    shown("result", data=b"not shown")
    assert next(told) == ("attempt", {"number": 1})
    shown("end", exit_code=3, text="over", warnings=[])
    shown("note", text="later")
    assert next(told) == ("note", {"text": "later"})
    shown.close()
    assert list(told) == [("end", {"exit_code": 3, "text": "over", "warnings": []})]


def test_an_error_of_the_launchers_own_is_an_end(shown: Viewers) -> None:
    told = View("j", shown.name, 0).events()
    next(told)
    shown.fails(73, "no host")
    shown.close()
    assert [facts["exit_code"] for _, facts in told] == [73]


def test_a_viewer_that_leaves_is_forgotten(shown: Viewers) -> None:
    look = View("j", shown.name, 0)
    told = look.events()
    next(told)
    look.leave()
    assert list(told) == []
    for _ in range(200):
        if not shown._here:
            return
        threading.Event().wait(0.02)
    raise AssertionError("still there")


def test_there_is_a_most_of_viewers(shown: Viewers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "_MOST", 0)
    with pytest.raises(HostError, match="job j: 0 viewers look at this job; end one of them"):
        list(View("j", shown.name, 0).events())


def test_strangers_are_not_heard(shown: Viewers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "credentials", lambda sock: (1, 12345, 1))
    assert list(View("j", shown.name, 0).events()) == []


def test_a_head_that_refuses_before_it_is_asked_is_heard() -> None:
    with socket.socket(socket.AF_UNIX) as head:
        head.bind("\0xla-run-refuses-early")
        head.listen()

        def refuse() -> None:
            there, _ = head.accept()
            there.sendall(events.encoded("refused", {"text": "not now"}))
            there.close()

        thread = threading.Thread(target=refuse)
        thread.start()

        def connected(sock: socket.socket) -> tuple[int, int, int]:
            thread.join()
            return credentials(sock)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(view, "credentials", connected)
            look = View("j", "xla-run-refuses-early", 0)
        with pytest.raises(HostError, match="job j: not now"):
            list(look.events())


def test_a_stranger_in_the_heads_place_is_not_believed(
    shown: Viewers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "credentials", lambda sock: (1, 12345, 1))
    with pytest.raises(HostError, match="job j: another user answers in its place"):
        View("j", shown.name, 0)


def test_a_head_that_is_gone_or_stopped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match=r"job j: its launcher cannot be looked at: .*refused"):
        View("j", "xla-run-nobody", 0)
    monkeypatch.setattr(view, "_ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind("\0xla-run-silent-here")
        silent.listen()
        with pytest.raises(HostError, match="did not answer in 0 s; it may be stopped"):
            list(View("j", "xla-run-silent-here", 0).events())

"""A profile that somebody else has asked for, beside what the program does itself."""

import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from torch_xdist.debug import asked_profile, profiler_sessions
from torch_xdist.errors import ReleaseError


def stepped(name: str) -> None:
    with jax.profiler.TraceAnnotation(name):
        jnp.ones(3).block_until_ready()


def taking(limit_s: float) -> tuple[threading.Event, list[asked_profile.Taken], threading.Thread]:
    ended, found = threading.Event(), []
    thread = threading.Thread(
        target=lambda: found.append(asked_profile.take(limit_s, ended, python_calls=False))
    )
    thread.start()
    while not asked_profile.runs():
        pass
    return ended, found, thread


def test_it_holds_what_happens_until_it_is_ended() -> None:
    ended, found, thread = taking(60.0)
    stepped("in_it")
    ended.set()
    thread.join(30)
    stepped("after_it")
    (taken,) = found
    assert b"in_it" in taken.data and b"after_it" not in taken.data
    assert not taken.is_cut and taken.seconds < 30 and not asked_profile.runs()


def test_a_profile_of_the_program_itself_ends_it_and_is_whole(tmp_path: Path) -> None:
    _, found, thread = taking(60.0)
    stepped("before_mine")
    jax.profiler.start_trace(tmp_path)
    stepped("in_mine")
    thread.join(30)
    stepped("in_mine_too")
    jax.profiler.stop_trace()
    (taken,) = found
    assert taken.is_cut and b"before_mine" in taken.data and b"in_mine" not in taken.data
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert b"in_mine_too" in file.read_bytes() and b"before_mine" not in file.read_bytes()


def test_a_profiler_that_fails_is_told_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> bytes:
        raise ValueError("no events")

    session = SimpleNamespace(stop=fail)
    monkeypatch.setattr(asked_profile, "profiler_session", lambda **_: session)
    with pytest.raises(RuntimeError, match="profile: XLA's profiler failed: no events"):
        asked_profile.take(0.0, threading.Event(), python_calls=False)


def test_what_is_called_before_other_sessions_is_called_only_meanwhile() -> None:
    called: list[int] = []
    with profiler_sessions.before_other_sessions(lambda: called.append(1)):
        profiler_sessions.profiler_session().stop()
    profiler_sessions.profiler_session().stop()
    assert called == [1]


def test_a_jax_without_these_names_says_what_to_install(monkeypatch):
    monkeypatch.setattr(profiler_sessions, "_profiler", None)
    with pytest.raises(ReleaseError, match="has no profiler's session; install jax"):
        profiler_sessions.profiler_session()
    with pytest.raises(ReleaseError, match="has no server of its profiler that can be ended"):
        profiler_sessions.profiler_server(1)

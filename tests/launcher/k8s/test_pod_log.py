"""The log of a pod: every line once and whole, whatever its connections do."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubectl_stand_in import REFUSED, calls, stand_in

from torch_xdist.launcher.k8s.kubectl import Kubectl
from torch_xdist.launcher.k8s.pod_log import Lines, PodLog, parsed

LIMIT_S = 10.0


def stamped(number: int, text: str) -> str:
    """A line of the second `number` // 3, as kubectl prints it."""
    return f"2031-05-17T08:30:{number // 3:02d}.{number % 3}00000000Z {text}\n"


TEXT = "".join(stamped(number, f"line {number}") for number in range(9))


def read(
    folder: Path, monkeypatch, logs: list[str], faults: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """What is shown and what is said of a log, in the order of its connections."""
    monkeypatch.setenv("PATH", stand_in(folder, {"logs": faults}, logs={"p": logs}))
    shown: list[bytes] = []
    said: list[str] = []
    log = PodLog(Kubectl(), "p", shown.append, said.append, pause_s=0.01)
    end_s = time.monotonic() + LIMIT_S
    while len(calls(folder)) < len(logs) + len(faults) and time.monotonic() < end_s:
        time.sleep(0.02)
    log.finish(LIMIT_S)
    return b"".join(shown).decode(), said


def lines(*numbers: int) -> str:
    return "".join(f"line {number}\n" for number in numbers)


def test_a_log_is_shown_without_the_times(tmp_path: Path, monkeypatch) -> None:
    assert read(tmp_path, monkeypatch, [TEXT]) == (lines(*range(9)), [])


def test_a_connection_that_is_cut_loses_and_repeats_nothing(tmp_path: Path, monkeypatch) -> None:
    cuts = [TEXT[: TEXT.index("line 4") + 3], TEXT[: TEXT.index("line 5")], TEXT]
    assert read(tmp_path, monkeypatch, cuts) == (lines(*range(9)), [])
    words, _ = calls(tmp_path)[1]
    # Lines 3 to 5 are of the second 1, and 3 had come.
    assert "--since-time=2031-05-17T08:30:01Z" in words


def test_a_log_that_cannot_be_read_is_asked_for_again_and_told_once(
    tmp_path: Path, monkeypatch
) -> None:
    found, said = read(tmp_path, monkeypatch, [TEXT], [REFUSED, REFUSED])
    assert found == lines(*range(9))
    assert said == [f"the log of pod p is asked for again: {REFUSED}"]


def test_last_words_without_the_end_of_a_line_are_shown(tmp_path: Path, monkeypatch) -> None:
    found, _ = read(tmp_path, monkeypatch, [TEXT + stamped(9, "bye").rstrip("\n")])
    assert found == lines(*range(9)) + "bye\n"


def test_a_kubectl_that_hangs_is_left_after_the_limit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", stand_in(tmp_path, {"logs": ["hang", "hang"]}))
    log = PodLog(Kubectl(), "p", lambda _: None, lambda _: None)
    started_s = time.monotonic()
    log.finish(0.5)
    assert time.monotonic() - started_s < LIMIT_S


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12).map(sorted),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_lines_of_one_moment_are_told_apart(times: list[tuple[int, int]], cuts: list[int]) -> None:
    text = [
        f"2031-05-17T08:30:{second:02d}.{part}00000000Z {number}\n".encode()
        for number, (second, part) in enumerate(times)
    ]
    shown: list[bytes] = []
    log = Lines(shown.append)
    for cut in [*cuts, len(text)]:
        log.connect()
        since = log.since()[:19].encode()
        for line in text[: max(cut, 0)]:
            if line[:19] >= since:
                log.take(line)
    assert shown == [f"{number}\n".encode() for number in range(len(times))]


def test_a_line_that_was_cut_and_does_not_come_again_is_shown_as_far_as_it_came() -> None:
    shown: list[bytes] = []
    log = Lines(shown.append)
    log.connect()
    log.take(b"2031-05-17T08:30:00Z hal")
    log.connect()
    log.end()
    assert shown == [b"hal\n"]


@pytest.mark.parametrize(
    ("stamp", "found"),
    [
        (b"1970-01-01T00:00:01.5Z", (1, 500_000_000)),
        (b"1970-01-01T00:00:01Z", (1, 0)),
        (b"1970-01-01T01:00:01.000000001+01:00", (1, 1)),
        (b"1970-01-01T00:00:01", None),
        (b"failed", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_times_are_read_to_the_nanosecond(stamp: bytes, found: object) -> None:
    assert parsed(stamp) == found


def test_what_has_no_time_is_shown_as_it_is() -> None:
    shown: list[bytes] = []
    log = Lines(shown.append)
    log.connect()
    log.take(b"failed to watch file\n")
    assert shown == [b"failed to watch file\n"]

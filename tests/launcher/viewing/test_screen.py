"""What is shown of a job, and that nobody waits for a terminal."""

import io
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from torch_xdist.launcher.viewing.background import BackgroundWriter
from torch_xdist.launcher.viewing.screen import (
    Composer,
    Screen,
    cleaned,
    status_text,
)


def test_the_status_line_says_step_pace_and_who_is_slow() -> None:
    assert status_text(4, 4, [120, 120, 118, 120], 0.21, 1, "") == (
        "4/4 ranks up, step 120, 0.21 s/step, slowest rank 2 (118), restarts 1"
    )
    assert status_text(1, 4, [0, 0, 0, 0], None, 0, "") == "1/4 ranks up"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_status_is_the_last_line_and_goes_at_the_end() -> None:
    out = Tty()
    screen = Screen(2, out, out)
    screen("start", text="2 ranks on 1 host, CPU (shared memory)")
    screen("beats", up=2, steps=[3, 3], attempt=0, standing="")
    screen("log", rank=1, lines=["hello"])
    screen.close()
    text = out.getvalue()
    assert "\r\x1b[K2/2 ranks up, step 3" in text or "2/2 ranks up, step 3" in text
    assert "\r\x1b[K[1] hello\n" in text and text.endswith("\r\x1b[K")


def test_elsewhere_there_are_plain_lines_alone() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(1, out, err)
    screen("start", text="1 rank on 1 host, CPU")
    screen("beats", up=1, steps=[3], attempt=0, standing="")
    screen("log", rank=0, lines=["hello"])
    screen.close()
    assert (out.getvalue(), err.getvalue()) == ("hello\n", "1 rank on 1 host, CPU\n")


def test_lines_and_our_own_words_come_in_order() -> None:
    out = io.StringIO()
    screen = Screen(3, out, out)
    screen("log", rank=2, lines=["a", "b"])
    screen.say("xla-run: rank 2 left")
    screen("log", rank=0, lines=["c"])
    screen.close()
    assert out.getvalue() == "[2] a\n[2] b\nxla-run: rank 2 left\n[0] c\n"


class Blocked(io.StringIO):
    """Takes nothing until it is released."""

    def __init__(self, tty: bool = False) -> None:
        super().__init__()
        self.released, self.reached = threading.Event(), threading.Event()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> int:
        self.reached.set()
        self.released.wait(60)
        return super().write(text)


@pytest.mark.parametrize("tty", [False, True])
def test_nobody_waits_for_a_terminal_that_does_not_read(tty: bool) -> None:
    out = Blocked(tty)
    screen = Screen(2, out, out)
    began_s = time.monotonic()
    screen("log", rank=0, lines=["first"])
    assert out.reached.wait(30)
    for _ in range(100):
        screen("beats", up=2, steps=[3, 3], attempt=0, standing="")
        screen("note", text="a note")
        screen("log", rank=0, lines=["y" * 40])
    screen.close(limit_s=0.5)
    assert time.monotonic() - began_s < 30
    out.released.set()


def blocked_writer(most_bytes: int) -> tuple[list[str], threading.Event, BackgroundWriter[str]]:
    written: list[str] = []
    released, reached = threading.Event(), threading.Event()

    def write(text: str) -> None:
        reached.set()
        released.wait(60)
        written.append(text)

    writer = BackgroundWriter(write, lambda lines: f"{lines} dropped", most_bytes)
    writer.offer("first", 10, 1)
    assert reached.wait(30)
    return written, released, writer


def test_what_a_blocked_terminal_cannot_take_is_counted_and_our_own_lines_stay() -> None:
    written, released, writer = blocked_writer(most_bytes=100)
    for _ in range(50):
        writer.offer("line", 40, 1)
    writer.offer("own")
    released.set()
    assert writer.close(30)
    lines = written.count("line")
    assert 0 < lines < 10
    assert written == ["first", *["line"] * lines, f"{50 - lines} dropped", "own"]


def test_lines_dropped_at_the_very_end_are_counted_too() -> None:
    written, released, writer = blocked_writer(most_bytes=5)
    writer.offer("dropped", 10, 1)
    released.set()
    assert writer.close(30)
    assert written == ["first", "1 dropped"]


def test_a_writer_that_stays_blocked_is_left_behind() -> None:
    _, released, writer = blocked_writer(most_bytes=100)
    assert not writer.close(0.1)
    released.set()


def test_a_closed_terminal_ends_nothing() -> None:
    out = io.StringIO()
    screen = Screen(1, out, io.StringIO())
    out.close()
    screen("log", rank=0, lines=["a"])
    screen.close(30)


def test_a_terminal_that_cannot_show_a_character_shows_another() -> None:
    raw = io.BytesIO()
    screen = Screen(2, io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    screen("log", rank=0, lines=["naïve"])
    screen.close(30)
    assert raw.getvalue() == b"[0] na?ve\n"


# ---- prompts, times and control characters -----------------------------------------------------


def composed(*calls: Callable[[Composer], str], **options: Any) -> str:
    composer = Composer(**{"prefix": True, **options})
    return "".join(call(composer) for call in calls)


def test_the_answer_to_a_prompt_goes_on_behind_it() -> None:
    text = composed(
        lambda c: c.lines(0, ["stopped here"], "(Pdb) "),
        lambda c: c.lines(0, ["(Pdb) 5"], "(Pdb) "),
        lambda c: c.lines(0, ["(Pdb) 6"], ""),
        lambda c: c.lines(0, ["on"], ""),
        prefix=False,
    )
    assert text == "stopped here\n(Pdb) 5\n(Pdb) 6\non\n"


def test_lines_of_others_come_above_a_prompt() -> None:
    text = composed(
        lambda c: c.lines(1, [], "name? "),
        lambda c: c.lines(0, ["loss 1"], ""),
        lambda c: c.own("a note"),
        lambda c: c.lines(1, ["name? x"], ""),
    )
    assert text == "[1] name? \n[0] loss 1\n[1] name? \na note\n[1] name? x\n"


def test_every_line_has_its_time_where_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 5.25)
    monkeypatch.setattr("time.localtime", time.gmtime)
    text = composed(lambda c: c.lines(1, ["a", "b"]), lambda c: c.own("own"), timestamps=True)
    at = "00:00:05.250"
    assert text == f"{at} [1] a\n{at} [1] b\n{at} own\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext é\n", "plain\ttext é\n"),
        ("\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\x1b[0m\n"),
        ("\x1b[2K\x1b[1A[0] forged", "[0] forged"),
        ("\x1b]0;title\x07x\x1bcy", "xy"),
        ("a\rb\x08c\x9b5md\x00", "abc5md"),
    ],
)
def test_control_characters_do_not_reach_a_terminal_and_colours_do(text: str, shown: str) -> None:
    assert cleaned(text) == shown


def test_on_a_terminal_no_rank_can_forge_a_line_of_another() -> None:
    out = Tty()
    screen = Screen(2, out, out)
    screen("log", rank=1, lines=["loss\r\x1b[K[0] nan"])
    screen.close()
    assert "[1] loss[0] nan\n" in out.getvalue()


def test_a_file_gets_what_the_ranks_wrote() -> None:
    out = io.StringIO()
    screen = Screen(1, out, out)
    screen("log", rank=0, lines=["\x1b[1mbold"])
    screen.close()
    assert out.getvalue() == "\x1b[1mbold\n"


@pytest.mark.parametrize("terminal", ["out", "err"])
def test_of_two_streams_the_one_that_is_a_terminal_is_cleaned(terminal: str) -> None:
    out, err = (Tty() if name == terminal else io.StringIO() for name in ("out", "err"))
    screen = Screen(1, out, err)
    screen("log", rank=0, lines=["\x1b[2Kforged"])
    screen("note", text="\x1b[2Kforged")
    screen.close()
    shown = {"out": out.getvalue(), "err": err.getvalue()}
    assert shown.pop(terminal) == "forged\n"
    assert list(shown.values()) == ["\x1b[2Kforged\n"]


def test_lines_of_several_hosts_begin_with_host_and_rank() -> None:
    told = composed(lambda screen: screen.lines(1, ["hello"]), labels=["a/0", "b/1"])
    assert told == "[b/1] hello\n"


def test_an_attempt_on_other_hosts_has_other_labels() -> None:
    out = io.StringIO()
    screen = Screen(2, out, out, labels=["a/0", "b/1"])
    for labels in (["a/0", "b/1"], ["c/0"]):
        screen("attempt", number=0, labels=labels)
        screen("log", rank=0, lines=["hello"])
    screen.close()
    assert out.getvalue() == "[a/0] hello\n[c/0] hello\n"

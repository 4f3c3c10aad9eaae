"""Real pipes, real files, real slow readers: output is whole, and nobody waits for a terminal."""

import errno
import io
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
import time

import pytest

from torch_xdist.launcher.pump import LogFiles, Pump, Terminal


class Shown:
    """Collects lines, and warnings."""

    def __init__(self):
        self.lines = []
        self.warnings = []

    def show(self, rank, lines):
        self.lines += [(rank, line) for line in lines]


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def pump(tmp_path, shown):
    pump = Pump(tmp_path / "logs", shown.show, shown.warnings.append)
    yield pump
    pump.close()


def write(pump, rank, *chunks):
    read_end, write_end = os.pipe()
    pump.add(rank, read_end)
    for chunk in chunks:
        os.write(write_end, chunk)
    os.close(write_end)
    assert pump.wait(rank, 30.0)


def test_bytes_go_to_the_file_and_lines_to_the_terminal(pump, shown):
    write(pump, 2, b"caf\xc3", b"\xa9\nbar 1%\rbar 2%\n\xff rest")
    assert shown.lines == [(2, "café"), (2, "bar 2%"), (2, "\ufffd rest")]
    assert pump.path(2).read_bytes() == b"caf\xc3\xa9\nbar 1%\rbar 2%\n\xff rest"
    assert pump.tail(2) == ("café", "bar 2%", "\ufffd rest")
    assert shown.warnings == []


def test_files_and_their_directory_are_private(pump):
    write(pump, 0, b"secret\n")
    assert stat.S_IMODE(pump.path(0).stat().st_mode) == 0o600
    assert stat.S_IMODE(pump.path(0).parent.stat().st_mode) == 0o700


def test_the_tail_is_bounded(pump):
    write(pump, 0, b"".join(b"%d " % index + b"x" * 3000 + b"\n" for index in range(100)))
    tail = pump.tail(0)
    assert len(tail) == 50
    assert tail[-1].startswith("99 ")
    assert max(map(len, tail)) <= 1000
    assert pump.tail(7) == ()


def test_several_ranks_and_pipes_at_once(pump, shown):
    ends = []
    for rank in (0, 1, 1):
        read_end, write_end = os.pipe()
        pump.add(rank, read_end)
        ends.append(write_end)
    for index in range(100):
        for end in ends:
            os.write(end, b"line %d\n" % index)
    for end in ends:
        os.close(end)
    assert pump.wait(0, 30.0) and pump.wait(1, 30.0)
    assert [line for rank, line in shown.lines if rank == 0] == [f"line {i}" for i in range(100)]
    assert pump.path(1).read_bytes().count(b"\n") == 200


def test_a_pipe_that_a_leftover_process_holds_ends_the_wait_and_the_close(tmp_path, shown):
    pump = Pump(tmp_path, shown.show, shown.warnings.append)
    read_end, write_end = os.pipe()
    pump.add(0, read_end)
    os.write(write_end, b"half a line")
    began_s = time.monotonic()
    assert not pump.wait(0, 0.2)
    pump.close(0.2)
    assert time.monotonic() - began_s < 10
    os.close(write_end)
    assert (tmp_path / "rank-0.log").read_bytes() == b"half a line"
    assert shown.lines == [(0, "half a line")]


def test_without_a_log_directory_lines_are_still_shown(shown):
    pump = Pump(None, shown.show, shown.warnings.append)
    write(pump, 0, b"a\n")
    pump.close()
    assert (shown.lines, shown.warnings, pump.path(0)) == ([(0, "a")], [], None)


WRITER = """
import os, sys, time
line = b"x" * 99 + b"\\n"
began = time.monotonic()
out = sys.stdout.buffer
for _ in range(int(sys.argv[1])):
    out.write(line)
out.flush()
os.write(2, b"%f" % (time.monotonic() - began))
"""


class SlowTerminal(io.StringIO):
    def write(self, text):
        time.sleep(0.2)
        return super().write(text)


def test_a_slow_terminal_never_slows_a_rank_and_memory_stays_bounded(tmp_path):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slow = SlowTerminal()
    terminal = Terminal(slow, most_bytes=1 << 20)
    pump = Pump(tmp_path, terminal.show, terminal.say)
    read_end, write_end = os.pipe()
    pump.add(0, read_end)
    began_s = time.monotonic()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, "200000"], stdout=write_end, stderr=subprocess.PIPE
    )
    os.close(write_end)
    writer.communicate(timeout=60)
    assert pump.wait(0, 60.0)
    took_s = time.monotonic() - began_s
    pump.close()
    terminal.close(0.1)
    # 20 MB at this terminal's speed of one piece in 0.2 s would take far longer.
    assert took_s < 15
    assert (tmp_path / "rank-0.log").stat().st_size == 20_000_000
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 100 * 1024


def test_a_terminal_writes_prefixed_lines_in_order():
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.show(2, ["a", "b"])
    terminal.say("xla-run: rank 2 left")
    terminal.show(0, ["c"])
    terminal.close()
    assert out.getvalue() == "[2] a\n[2] b\nxla-run: rank 2 left\n[0] c\n"


def test_a_terminal_may_leave_the_prefix_out():
    out = io.StringIO()
    terminal = Terminal(out, prefix=False)
    terminal.show(0, ["plain"])
    terminal.close()
    assert out.getvalue() == "plain\n"


class BlockedTerminal(io.StringIO):
    """Takes nothing until it is released."""

    def __init__(self):
        super().__init__()
        self.released = threading.Event()
        self.reached = threading.Event()

    def write(self, text):
        self.reached.set()
        self.released.wait(60)
        return super().write(text)


def test_what_a_blocked_terminal_cannot_take_is_counted_and_our_own_lines_stay():
    out = BlockedTerminal()
    terminal = Terminal(out, most_bytes=100)
    terminal.show(0, ["first"])
    assert out.reached.wait(30)
    for _ in range(50):
        terminal.show(0, ["y" * 40])
    terminal.say("xla-run: stopped")
    out.released.set()
    terminal.close(30)
    lines = out.getvalue().splitlines()
    note = next(line for line in lines if "not shown" in line)
    written = sum("y" in line and line.startswith("[0]") for line in lines)
    assert note == f"[{50 - written} lines not shown, they are in the logs]"
    assert 0 < written < 10
    assert lines[-1] == "xla-run: stopped"


def test_lines_dropped_at_the_very_end_are_counted_too():
    out = BlockedTerminal()
    terminal = Terminal(out, most_bytes=10)
    terminal.show(0, ["z" * 20])
    assert out.reached.wait(30)
    terminal.show(0, ["dropped"])
    out.released.set()
    terminal.close(30)
    assert out.getvalue().endswith("[1 lines not shown, they are in the logs]\n")


def test_a_closed_terminal_ends_nothing():
    out = io.StringIO()
    out.close()
    terminal = Terminal(out)
    terminal.show(0, ["a"])
    terminal.close(30)


def test_a_terminal_that_cannot_show_a_character_shows_another():
    raw = io.BytesIO()
    terminal = Terminal(io.TextIOWrapper(raw, encoding="ascii"))
    terminal.show(0, ["naïve"])
    terminal.close(30)
    assert raw.getvalue() == b"[0] na?ve\n"


def full_disk(monkeypatch, after_bytes):
    """Let writes to regular files fail once so many bytes were written; yields a switch."""
    real, state = os.write, {"room": after_bytes}

    def write(fd, data):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return real(fd, data)
        if state["room"] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(fd, data[: state["room"]])
        state["room"] -= written
        return written

    monkeypatch.setattr("torch_xdist.launcher.pump.os.write", write)
    return state


def test_a_full_disk_is_one_warning_and_the_gap_is_noted(tmp_path, monkeypatch):
    warnings = []
    files = LogFiles(tmp_path, warnings.append)
    state = full_disk(monkeypatch, after_bytes=6)
    files.write(0, b"12345678")
    files.write(0, b"abc")
    assert warnings == [
        f"log directory {tmp_path}: No space left on device; the job goes on, output is lost there"
    ]
    state["room"] = 1000
    files.write(0, b"again\n")
    files.close()
    text = (tmp_path / "rank-0.log").read_bytes()
    assert text == b"123456\n[5 bytes are missing here]\nagain\n"
    assert len(warnings) == 1


def test_a_directory_that_cannot_be_made_is_one_warning(tmp_path, shown):
    (tmp_path / "file").write_text("")
    pump = Pump(tmp_path / "file" / "logs", shown.show, shown.warnings.append)
    write(pump, 0, b"a\n")
    write(pump, 1, b"b\n")
    pump.close()
    assert sorted(shown.lines) == [(0, "a"), (1, "b")]
    assert len(shown.warnings) == 1
    assert "Not a directory; the job goes on" in shown.warnings[0]


def test_a_directory_that_was_removed_is_one_warning(tmp_path, shown, monkeypatch):
    monkeypatch.setattr("torch_xdist.launcher.pump._LOOK_S", 0.0)
    pump = Pump(tmp_path / "logs", shown.show, shown.warnings.append)
    read_end, write_end = os.pipe()
    pump.add(0, read_end)
    os.write(write_end, b"before\n")
    deadline_s = time.monotonic() + 30
    while not shown.lines and time.monotonic() < deadline_s:
        time.sleep(0.01)
    shutil.rmtree(tmp_path / "logs")
    for _ in range(3):
        os.write(write_end, b"after\n")
        time.sleep(0.02)
    os.close(write_end)
    assert pump.wait(0, 30)
    pump.close()
    assert [line for _, line in shown.lines] == ["before", "after", "after", "after"]
    assert len(shown.warnings) == 1
    assert "was removed; the job goes on" in shown.warnings[0]


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path):
    (tmp_path / "rank-0.log").symlink_to(tmp_path / "elsewhere")
    warnings = []
    files = LogFiles(tmp_path, warnings.append)
    files.write(0, b"x")
    assert len(warnings) == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_progress_bar_is_shown_before_its_line_ends(shown, monkeypatch):
    monkeypatch.setattr("torch_xdist.launcher.pump._BAR_S", 0.0)
    monkeypatch.setattr("torch_xdist.launcher.pump._LOOK_S", 0.01)
    pump = Pump(None, shown.show, shown.warnings.append)
    read_end, write_end = os.pipe()
    pump.add(0, read_end)
    os.write(write_end, b"epoch 10%\repoch 20%")
    deadline_s = time.monotonic() + 30
    while not shown.lines and time.monotonic() < deadline_s:
        time.sleep(0.01)
    os.write(write_end, b"\repoch 100%\n")
    os.close(write_end)
    assert pump.wait(0, 30)
    pump.close()
    assert (shown.lines[0], shown.lines[-1]) == ((0, "epoch 20%"), (0, "epoch 100%"))

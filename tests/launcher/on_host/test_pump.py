"""Real pipes, real files, real slow readers: output is whole, and nobody waits for a terminal."""

import errno
import io
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import threading
import time

import pytest

from torch_xdist.launcher.on_host import log_files
from torch_xdist.launcher.on_host.log_files import LogFiles
from torch_xdist.launcher.on_host.pump import Pump
from torch_xdist.launcher.viewing.screen import Screen


class Shown:
    """Collects lines, and warnings."""

    def __init__(self):
        self.lines = []
        self.unfinished = []
        self.warnings = []

    def show(self, rank, lines, unfinished):
        self.lines += [(rank, line) for line in lines]
        if unfinished:
            self.unfinished.append(unfinished)


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def log_dir(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def pump(log_dir, shown):
    pump = Pump(log_dir, shown.show, shown.warnings.append)
    yield pump
    if pump._thread.is_alive():
        pump.close()


def drained(pump, rank, limit_s=30.0):
    """Wait until all that a rank wrote has been read; whether it was."""
    with pump._changed:
        return pump._changed.wait_for(
            lambda: all(stream.rank != rank for stream in pump._streams.values()), limit_s
        )


def write(pump, rank, *chunks):
    read_end, write_end = os.pipe()
    pump.add(rank, read_end)
    for chunk in chunks:
        os.write(write_end, chunk)
    os.close(write_end)
    assert drained(pump, rank)


def until(condition, limit_s=30.0):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_bytes_go_to_the_file_and_lines_to_the_terminal(pump, shown, log_dir):
    write(pump, 2, b"caf\xc3", b"\xa9\nbar 1%\rbar 2%\n\xff rest")
    assert shown.lines == [(2, "café"), (2, "bar 2%"), (2, "\ufffd rest")]
    assert pump.tail(2) == ("café", "bar 2%", "\ufffd rest")
    pump.close()
    log = log_dir / "rank-2.log"
    assert log.read_bytes() == b"caf\xc3\xa9\nbar 1%\rbar 2%\n\xff rest"
    assert shown.warnings == []


def test_files_and_their_directory_are_private(pump, log_dir):
    write(pump, 0, b"secret\n")
    pump.close()
    for path in log_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log_dir.stat().st_mode) == 0o700


def test_the_tail_is_bounded(pump):
    write(pump, 0, b"".join(b"%d " % index + b"x" * 3000 + b"\n" for index in range(100)))
    tail = pump.tail(0)
    assert len(tail) == 50
    assert tail[-1].startswith("99 ")
    assert max(map(len, tail)) <= 1000
    assert pump.tail(7) == ()


def test_several_ranks_and_pipes_at_once(pump, shown, log_dir):
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
    assert drained(pump, 0) and drained(pump, 1)
    assert [line for rank, line in shown.lines if rank == 0] == [f"line {i}" for i in range(100)]
    pump.close()
    assert (log_dir / "rank-1.log").read_bytes().count(b"\n") == 200


def test_a_pipe_that_a_leftover_process_holds_ends_the_wait_and_the_close(tmp_path, shown):
    pump = Pump(tmp_path, shown.show, shown.warnings.append)
    read_end, write_end = os.pipe()
    pump.add(0, read_end)
    os.write(write_end, b"half a line")
    began_s = time.monotonic()
    assert not drained(pump, 0, 0.2)
    pump.close(0.2)
    assert time.monotonic() - began_s < 30
    os.close(write_end)
    assert (tmp_path / "rank-0.log").read_bytes() == b"half a line"
    assert shown.lines == [(0, "half a line")]


def test_without_a_log_directory_lines_are_still_shown(shown):
    pump = Pump(None, shown.show, shown.warnings.append)
    write(pump, 0, b"a\n")
    pump.close()
    assert (shown.lines, shown.warnings) == ([(0, "a")], [])


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
    screen = Screen(2, slow, slow)
    pump = Pump(
        tmp_path,
        lambda rank, lines, _: screen("log", rank=rank, lines=lines),
        lambda text: screen.say(text),
    )
    read_end, write_end = os.pipe()
    pump.add(0, read_end)
    began_s = time.monotonic()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, "200000"], stdout=write_end, stderr=subprocess.PIPE
    )
    os.close(write_end)
    writer.communicate(timeout=60)
    assert drained(pump, 0, 60.0)
    took_s = time.monotonic() - began_s
    pump.close()
    screen.close(0.1)
    # 20 MB at this terminal's speed of one piece in 0.2 s would take far longer.
    assert took_s < 30
    assert (tmp_path / "rank-0.log").stat().st_size == 20_000_000
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 100 * 1024


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

    monkeypatch.setattr(log_files.os, "write", write)
    return state


def test_a_full_disk_is_one_warning_and_the_gap_is_noted(tmp_path, monkeypatch):
    warnings = []
    files = LogFiles(tmp_path, warnings.append)
    monkeypatch.setattr(LogFiles, "_mark", lambda *_: None)
    state = full_disk(monkeypatch, after_bytes=6)
    files.write(0, b"12345678")
    files.write(0, b"abc")
    until(lambda: files._lost[0] == 5)
    (warning,) = warnings
    told = r": No space left on device \([\d.]+ \w+ free\); the job goes on, output is lost there "
    told += "until there is room; remove what else lies there, or name another place by --log-dir"
    assert re.fullmatch(re.escape(f"log directory {tmp_path}") + told, warning)
    state["room"] = 1000
    files.write(0, b"again\n")
    files.close()
    text = (tmp_path / "rank-0.log").read_bytes()
    assert text == b"123456\n[5 bytes are missing here]\nagain\n"
    assert len(warnings) == 1


def hung_disk(monkeypatch):
    """Let writes to regular files hang until the event that is returned."""
    real, released = os.write, threading.Event()

    def write(fd, data):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            released.wait(60)
        return real(fd, data)

    monkeypatch.setattr(log_files.os, "write", write)
    return released


def test_a_disk_that_hangs_holds_up_a_rank_for_a_moment_only(log_dir, shown, monkeypatch):
    monkeypatch.setattr(log_files, "_HUNG_S", 0.5)
    monkeypatch.setattr(log_files, "_MOST_QUEUED_BYTES", 1 << 20)
    released = hung_disk(monkeypatch)
    pump = Pump(log_dir, shown.show, shown.warnings.append)
    began_s = time.monotonic()
    write(pump, 0, *[b"x" * 65535 + b"\n"] * 200)
    pump.note(0, "a note does not wait either\n")
    assert time.monotonic() - began_s < 30
    assert len(shown.lines) == 200
    assert len(shown.warnings) == 1
    assert "a write has not come back for 0.5 s; the job goes on" in shown.warnings[0]
    released.set()
    pump.close()
    text = (log_dir / "rank-0.log").read_bytes()
    assert len(text) < 200 << 16


def test_what_a_disk_that_hung_has_lost_is_counted_once_it_moves(tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "_HUNG_S", 0.0)
    monkeypatch.setattr(log_files, "_MOST_QUEUED_BYTES", 3)
    released = hung_disk(monkeypatch)
    files = LogFiles(tmp_path, lambda _: None)
    files.write(0, b"first\n")
    until(lambda: files._queued_bytes == 0)
    for data in (b"waits\n", b"lost\n", b"lost too\n"):
        files.write(0, data)
    released.set()
    until(lambda: files._queued_bytes == 0)
    files.write(0, b"last\n")
    files.close()
    text = (tmp_path / "rank-0.log").read_bytes()
    assert text.startswith(b"first\n") and text.endswith(b"last\n")
    assert b"[14 bytes are missing here]" in text and b"lost" not in text


def test_the_log_of_a_rank_that_has_ended_is_whole_after_a_flush(pump, log_dir, monkeypatch):
    """The thread that writes is late: the end of a log was fetched without its last lines."""
    append = LogFiles._append

    def late(*given):
        time.sleep(0.2)
        append(*given)

    monkeypatch.setattr(LogFiles, "_append", late)
    write(pump, 3, b"first\n")
    pump.note(3, "ValueError: last\n")
    pump.flush(3, 10.0)
    assert (log_dir / "rank-3.log").read_bytes() == b"first\nValueError: last\n"


def test_a_flush_waits_for_a_pipe_that_stays_open_no_longer_than_it_may(pump):
    read_end, write_end = os.pipe()
    pump.add(3, read_end)
    began_s = time.monotonic()
    pump.flush(3, 0.2)
    assert 0.2 <= time.monotonic() - began_s < 15
    os.close(write_end)


def test_the_times_of_a_log_say_when_which_part_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "_LOOK_S", 0.0)
    files = LogFiles(tmp_path, lambda _: None)
    began_s = time.time()
    for data in (b"one\n", b"three\n", b"two\n"):
        files.write(0, data)
    files.close()
    marks = [*log_files.TIME_MARK.iter_unpack((tmp_path / "rank-0.times").read_bytes())]
    assert [offset for _, offset in marks] == [0, 4, 10]
    assert all(began_s <= at_s <= time.time() for at_s, _ in marks)


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
    monkeypatch.setattr("torch_xdist.launcher.on_host.log_files._LOOK_S", 0.0)
    pump = Pump(tmp_path / "logs", shown.show, shown.warnings.append)
    read_end, write_end = os.pipe()
    pump.add(0, read_end)
    os.write(write_end, b"before\n")
    log = tmp_path / "logs" / "rank-0.log"
    until(lambda: log.exists() and log.stat().st_size)
    shutil.rmtree(tmp_path / "logs")
    for _ in range(3):
        os.write(write_end, b"after\n")
        time.sleep(0.02)
    os.close(write_end)
    assert drained(pump, 0)
    pump.close()
    assert [line for _, line in shown.lines] == ["before", "after", "after", "after"]
    assert len(shown.warnings) == 1
    assert "was removed; the job goes on" in shown.warnings[0]


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path):
    (tmp_path / "rank-0.log").symlink_to(tmp_path / "elsewhere")
    warnings = []
    files = LogFiles(tmp_path, warnings.append)
    files.write(0, b"x")
    files.close()
    assert len(warnings) == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_progress_bar_is_shown_before_its_line_ends(shown, monkeypatch):
    monkeypatch.setattr("torch_xdist.launcher.on_host.pump._BAR_S", 0.0)
    monkeypatch.setattr("torch_xdist.launcher.on_host.log_files._LOOK_S", 0.01)
    pump = Pump(None, shown.show, shown.warnings.append)
    read_end, write_end = os.pipe()
    pump.add(0, read_end)
    os.write(write_end, b"epoch 10%\repoch 20%")
    until(lambda: shown.lines)
    os.write(write_end, b"\repoch 100%\n")
    os.close(write_end)
    assert drained(pump, 0)
    pump.close()
    assert (shown.lines[0], shown.lines[-1]) == ((0, "epoch 20%"), (0, "epoch 100%"))


def test_a_prompt_is_shown_before_its_line_ends_where_somebody_types(pump, shown):
    read_end, write_end = os.pipe()
    pump.add(0, read_end, interactive=True)
    os.write(write_end, b"one\n(Pdb) ")
    until(lambda: shown.unfinished)
    assert (shown.lines, shown.unfinished) == ([(0, "one")], ["(Pdb) "])
    os.close(write_end)
    assert drained(pump, 0)


def test_the_end_of_a_ranks_last_pipe_is_told(log_dir, shown):
    told = []
    pump = Pump(log_dir, shown.show, shown.warnings.append, drained=told.append)
    ends = []
    for _ in range(2):
        read_end, write_end = os.pipe()
        pump.add(3, read_end)
        ends.append(write_end)
    os.close(ends[0])
    assert not pump.is_drained(3)
    os.close(ends[1])
    until(lambda: told)
    assert told == [3] and pump.is_drained(3)
    pump.close()

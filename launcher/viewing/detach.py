"""A job in the background: its head has a session of its own and outlives the terminal.

The head is a fork of the command that was typed, so it has the same variables, arguments and files,
and nothing is written down for it. Whoever typed waits at the end of a pipe until the job is up,
or has failed, and shows meanwhile what the head shows.
"""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from torch_xdist.launcher.facts import log_folders
from torch_xdist.launcher.facts.errors import ExitCode, LauncherError
from torch_xdist.launcher.viewing import events
from torch_xdist.launcher.viewing.background import BackgroundWriter
from torch_xdist.launcher.viewing.events import Facts
from torch_xdist.system.process import Process

_UNTIL = ("start", "end")
_TELL_S = 2.0


class InBackground:
    """What runs in the background, from the side of who started it.

    Args:
        work: a job, given what is to be called with each of its events; its exit code. It runs in
            another process, whose stdout and stderr are the file `screen.log` of the job's folder.
    """

    def __init__(self, work: Callable[[Callable[..., None]], int]) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()  # what waits there is not to be said twice
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        if (child := os.fork()) == 0:
            os.close(ours)
            os.setsid()
            # Not the leader of its session: no terminal that it opens can become its own.
            if os.fork() != 0:
                os._exit(0)
            _be_in_background(work, theirs)
        os.close(theirs)
        os.waitpid(child, 0)
        self._pipe = ours
        self._asked: list[int] = []
        self._head: Process | None = None

    def events(self) -> Iterator[tuple[str, Facts]]:
        """What its head shows, until the job is up ("start") or over ("end"), if it lives."""
        with os.fdopen(self._pipe, "rb") as lines:
            pid = lines.readline()
            if not pid:
                return
            with Process(int(pid)) as head:
                self._head = head
                try:
                    for number in self._asked:
                        head.signal(number)
                    yield from _until_up(lines)
                finally:
                    self._head = None

    def ask(self, number: int) -> None:
        """Stop it as if by this signal, unless it is up; safe in a signal handler."""
        self._asked.append(number)
        if self._head is not None:
            self._head.signal(number)


def _until_up(lines: Iterable[bytes]) -> Iterator[tuple[str, Facts]]:
    for line in lines:
        event, facts = events.decoded(line)
        yield event, facts
        if event == "start":
            return


def _be_in_background(work: Callable[[Callable[..., None]], int], pipe: int) -> NoReturn:
    code = int(ExitCode.INTERNAL)
    try:
        os.write(pipe, f"{os.getpid()}\n".encode())
        # Where it is kept is not known yet.
        early = os.memfd_create("screen")
        null = os.open(os.devnull, os.O_RDWR)
        for theirs, ours in ((null, 0), (early, 1), (early, 2)):
            os.dup2(theirs, ours)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        told = _Told(pipe)
        try:
            code = work(events.in_turn(_Output(early), told))
        except LauncherError as error:
            code = int(error.exit_code)
            os.write(2, f"xla-run: {str(error).removeprefix('xla-run: ')}\n".encode())
            told("end", exit_code=code, text=str(error), warnings=[])
        except Exception as error:
            traceback.print_exc()
            told("end", exit_code=code, text=f"the launcher failed: {error!r}", warnings=[])
        finally:
            told.close()
    finally:
        os._exit(code)


class _Told:
    """Tells who waits what is shown, until the job is up or over; never waits for them."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._is_open = pipe, True
        self._writer: BackgroundWriter[bytes] = BackgroundWriter(self._write, lambda lines: b"")

    def __call__(self, event: str, **facts: Any) -> None:
        if self._is_open and event in events.SHOWN and event != "beats":
            self._writer.offer(events.encoded(event, facts), *events.size(event, facts))
            self._is_open = event not in _UNTIL

    def close(self) -> None:
        self._writer.close(_TELL_S)

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._pipe, line) :]


class _Output:
    """Moves stdout and stderr to the job's folder once that is known; else they are dropped."""

    def __init__(self, early: int) -> None:
        self._early: int | None = early

    def __call__(self, event: str, **facts: Any) -> None:
        if event == "attempt" and self._early is not None:
            early, self._early = self._early, None
            file = _screen_file(facts["log_dir"])
            for ours in (1, 2):
                os.dup2(file, ours)
            with contextlib.suppress(OSError):
                os.write(file, os.pread(early, 1 << 20, 0))
            os.close(file)
            os.close(early)


def _screen_file(log_dir: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    if log_dir:
        with contextlib.suppress(OSError):
            return os.open(Path(log_dir).parent / log_folders.SCREEN, flags, 0o600)
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

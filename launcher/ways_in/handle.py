"""The caller's end of a job that `spawn` has started: its output, its results, its stop."""

import contextlib
import math
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from torch_xdist.launcher.facts import errors, payload, placement, settings
from torch_xdist.launcher.facts.errors import (
    HangError,
    LauncherError,
    RankFailedError,
    RendezvousError,
)
from torch_xdist.launcher.facts.job import Job, new_mark
from torch_xdist.launcher.on_host import inherit
from torch_xdist.launcher.viewing.screen import cleaned
from torch_xdist.launcher.ways_in import termination
from torch_xdist.system import process
from torch_xdist.system.frames import Frame, Link, Message
from torch_xdist.system.process import Child

# A signal that comes just before the main thread waits is not heard until the wait is over.
_LONGEST_WAIT_S = 0.5
_ERRORS: dict[int, type[LauncherError]] = {
    error.exit_code: error for error in (RendezvousError, HangError)
}


@dataclass(frozen=True)
class RankProcess:
    """One rank as the caller of `spawn` sees it."""

    rank: int
    pid: int
    # When it started, so that another process with its number is never taken for it.
    _born: str = field(default="", repr=False)

    def is_alive(self) -> bool:
        with contextlib.suppress(OSError):
            return process.state(self.pid) not in ("", "Z") and process.born(self.pid) == self._born
        return False


class Handle:
    """A running job that `spawn(..., join=False)` returned."""

    def __init__(self, spec: Job, blob: bytes) -> None:
        ours, theirs = socket.socketpair()
        self._conductor = _start_conductor(spec, theirs)
        theirs.close()
        self.job_id, self._ranks = spec.job_id, spec.ranks()
        self._link = Link(ours)
        stdin = [] if spec.stdin_rank is None else [0]
        self._link.send({"job": spec.to_json()}, blob, descriptors=stdin)
        self._results: dict[int, bytes] = {}
        self._processes: list[RankProcess] = []
        self._end: Message | None = None
        self._exception = b""
        self._watcher: threading.Thread | None = None

    @property
    def processes(self) -> list[RankProcess]:
        """The ranks that have started on this host, in order."""
        return list(self._processes)

    def pids(self) -> list[int]:
        """Their process ids."""
        return [rank.pid for rank in self.processes]

    def watch(self) -> None:
        """Take output and results on a thread, so that the caller may do something else."""
        self._watcher = threading.Thread(target=self._take_all, daemon=True, name="spawn")
        self._watcher.start()

    def join(self, timeout: float | None = None) -> list[Any] | None:
        """Wait for the end; the results in the order of the ranks, or None after `timeout` s.

        SIGTERM on the way lets the ranks end first (see `termination`).

        Raises:
            RankFailedError: as `spawn`.
        """
        try:
            with termination.passed_on(self._ask_to_terminate, self._wait):
                self._wait(timeout)
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._end is None:
            return None
        self._close()
        return self._outcome(self._end)

    def stop(self, number: int = 2) -> None:
        """Ask every rank to end as by this signal (2: SIGINT) and wait until none is left."""
        self._link.send({"signal": number})
        try:
            self._wait()
        except KeyboardInterrupt:
            self._link.send({"signal": number, "now": True})
            self._wait()
        self._close()

    def _ask_to_terminate(self) -> None:
        self._link.send({"signal": int(signal.SIGTERM)})

    def _wait(self, timeout: float | None = None) -> None:
        """Until the job is over, or `timeout` s have passed; one thread alone reads the socket."""
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while not self._waited(min(_LONGEST_WAIT_S, max(0.0, until_s - time.monotonic()))):
            if time.monotonic() >= until_s:
                return

    def _waited(self, limit_s: float) -> bool:
        """Whether the job is over, at most this long after the call."""
        if self._watcher is None:
            self._take_all(time.monotonic() + limit_s)
            return self._end is not None
        self._watcher.join(limit_s)
        return not self._watcher.is_alive()

    def _close(self) -> None:
        self._link.close()
        self._conductor.wait()
        self._conductor.close()

    def _take_all(self, until_s: float | None = None) -> None:
        while self._end is None:
            left_s = None if until_s is None else max(0.001, until_s - time.monotonic())
            self._link.sock.settimeout(left_s)
            try:
                received = self._link.receive()
            except TimeoutError:
                return
            except OSError:
                received = None
            if received is None:
                self._end = {"op": "lost"}
                return
            self._take(received)

    def _take(self, frame: Frame) -> None:
        message = frame.message
        match message["op"]:
            case "log":
                show(message["text"], sys.stdout)
            case "start" | "note":
                show(message["text"] + "\n", sys.stderr)
            case "arrived":
                pids = sorted((int(rank), pid) for rank, pid in message["pids"].items())
                self._processes = [RankProcess(rank, pid, _born(pid)) for rank, pid in pids]
            case "result":
                self._results[int(message["rank"])] = frame.blob
            case "end" | "refused":
                self._end, self._exception = message, frame.blob

    def _outcome(self, end: Message) -> list[Any]:
        if end["op"] == "lost":
            code = self._conductor.code
            raise LauncherError(
                f"spawn: the process that ran job {self.job_id} ended with code {code}; "
                "its ranks were ended too"
            )
        if end["op"] == "refused":
            raise _refusal(end)
        for warning in end["warnings"]:
            show(f"warning: {warning}\n", sys.stderr)
        if end["exit_code"] == 0:
            return [self._result(rank) for rank in self._ranks]
        if end["exit_code"] in _ERRORS and end["kind"] in ("hang", "launch"):
            raise _ERRORS[end["exit_code"]](end["text"])
        if self._exception:
            raise payload.loads_exception(
                self._exception, end["text"], rank=end["rank"], exit_code=end["exit_code"]
            )
        raise RankFailedError(end["text"], end["exit_code"], end["rank"])

    def _result(self, rank: int) -> Any:
        blob = self._results.get(rank, b"")
        return payload.loads_value(blob, f"the result of rank {rank}") if blob else None


def _start_conductor(spec: Job, link: socket.socket) -> Child:
    """The process that runs the job, and with it a nursery: ours where that can be inherited.

    With ranks on other hosts alone it has none.
    """
    environ = {**settings.environment(), **placement.shared_environ(spec)}
    mark = new_mark()
    forked = None
    if not spec.hosts and inherit.can():
        forked = inherit.fork_conductor(spec.job_id, spec.warmth, mark, link, environ)
    first = [] if spec.hosts else [spec.job_id, spec.warmth, mark]
    return forked or Child.start(
        [sys.executable, "-P", "-m", "torch_xdist.launcher.ways_in.conductor", *first],
        stdin=link.fileno(),
        env=environ,
        start_new_session=True,
    )


def _born(pid: int) -> str:
    with contextlib.suppress(OSError):
        return process.born(pid)
    return ""


def _refusal(end: Message) -> LauncherError:
    kind = getattr(errors, end["type"], LauncherError)
    return kind(end["text"])


def show(text: str, stream: Any) -> None:
    """Print what a job says, on a terminal without control characters of its ranks."""
    # A terminal that was closed must not end the job.
    with contextlib.suppress(OSError, ValueError):
        stream.write(cleaned(text) if _is_terminal(stream) else text)
        stream.flush()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):
        return False

"""`spawn`: run a function in every rank, by value, and get the results back.

The calling process stays as it is: no thread, no device, no torch. A conductor process runs the
job and sends over one socket what the ranks print, what they return, or why the job failed.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch_xdist.launcher import (
    cluster,
    devices,
    errors,
    exit_codes,
    here,
    inherit,
    job,
    linux,
    payload,
    placement,
    settings,
)
from torch_xdist.launcher.child import Child
from torch_xdist.launcher.errors import (
    HangError,
    LauncherError,
    NestedSpawnError,
    RankFailedError,
    RendezvousError,
    RestartsUsedUpError,
    UsageError,
)
from torch_xdist.launcher.frames import Link, Message
from torch_xdist.launcher.job import Job

START_METHODS = ("spawn", "fork", "forkserver")
_ERRORS: dict[int, type[LauncherError]] = {
    error.exit_code: error for error in (RendezvousError, HangError, RestartsUsedUpError)
}


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> "list[Any] | Handle":
    """Run `fn(rank, *args)` in `nprocs` processes, one per device, and return what they return.

    The function, its closure and its arguments travel by value, so it may be a lambda, or defined
    in `__main__` or a notebook cell. Inside a rank that `xla-run`, torchrun, Slurm or mpirun
    started, no process is started: the function runs here, as that rank.

    Args:
        nprocs: ranks on this host; None: CPU_NUM_DEVICES, or 1, on the CPU, else one per device.
        join: wait for the end; else a `Handle` comes back at once.
        daemon: accepted for torch's sake; ranks never outlive their caller.
        start_method: accepted for torch's sake; ranks are forked from a process that has imported
            torch and has nothing else of the caller.

    Returns:
        The results in the order of the ranks (of a foreign launcher's rank: its own alone), or a
        `Handle`.

    Raises:
        Exception: what a rank raised, with its traceback there as the cause.
        RankFailedError: a rank failed otherwise, or its exception cannot be pickled.
        PayloadError: something cannot be pickled; raised before anything starts.
        NestedSpawnError: called inside a rank that `spawn` started.
        UsageError, DevicesError: `nprocs`, `start_method` or PJRT_DEVICE cannot be right.

    A LauncherError that nobody catches ends the script with its `exit_code`: 137 after a SIGKILL.
    """
    exit_codes.pass_on()
    if start_method not in START_METHODS:
        raise UsageError(
            f"spawn: start_method={start_method!r} is unknown; it is one of "
            f"{', '.join(START_METHODS)}, and all of them do the same here"
        )
    environ = settings.environment()
    rank = _own_rank(environ)
    if rank is not None:
        return [fn(rank, *args)]
    blob = payload.dumps(fn, tuple(args))
    handle = Handle(_function_job(nprocs, environ), blob)
    if not join:
        handle.watch()
        return handle
    return handle.join() or []


@dataclass(frozen=True)
class RankProcess:
    """One rank as the caller of `spawn` sees it."""

    rank: int
    pid: int

    def is_alive(self) -> bool:
        return linux.state(self.pid) not in ("", "Z")


class Handle:
    """A running job that `spawn(..., join=False)` returned."""

    def __init__(self, spec: Job, blob: bytes) -> None:
        ours, theirs = socket.socketpair()
        self._conductor = _start_conductor(spec, theirs)
        theirs.close()
        self.job_id, self._nprocs = spec.job_id, spec.nprocs
        self._link = Link(ours)
        self._link.send({"job": spec.to_json()}, blob)
        self._results: dict[int, bytes] = {}
        self._pids: dict[int, int] = {}
        self._end: Message | None = None
        self._exception = b""
        self._watcher: threading.Thread | None = None

    @property
    def processes(self) -> list[RankProcess]:
        """The ranks that have started, in order."""
        return [RankProcess(rank, pid) for rank, pid in sorted(self._pids.items())]

    def pids(self) -> list[int]:
        """Their process ids."""
        return [process.pid for process in self.processes]

    def watch(self) -> None:
        """Take output and results on a thread, so that the caller may do something else."""
        self._watcher = threading.Thread(target=self._take_all, daemon=True, name="spawn")
        self._watcher.start()

    def join(self, timeout: float | None = None) -> list[Any] | None:
        """Wait for the end; the results in the order of the ranks, or None after `timeout` s.

        Raises:
            RankFailedError: as `spawn`.
        """
        try:
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

    def _wait(self, timeout: float | None = None) -> None:
        """Until the job is over, or `timeout` s have passed; one thread alone reads the socket."""
        if self._watcher is not None:
            self._watcher.join(timeout)
        else:
            self._take_all(None if timeout is None else time.monotonic() + timeout)

    def _close(self) -> None:
        self._link.close()
        self._conductor.wait()

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
            self._take(*received)

    def _take(self, message: Message, blob: bytes) -> None:
        match message["op"]:
            case "log":
                _print(message["text"], sys.stdout)
            case "start" | "note":
                _print(message["text"] + "\n", sys.stderr)
            case "arrived":
                self._pids = {int(rank): pid for rank, pid in message["pids"].items()}
            case "result":
                self._results[int(message["rank"])] = blob
            case "end" | "refused":
                self._end, self._exception = message, blob

    def _outcome(self, end: Message) -> list[Any]:
        if end["op"] == "lost":
            code = self._conductor.returncode
            raise LauncherError(
                f"spawn: the process that ran job {self.job_id} ended with code {code}; "
                "its ranks were ended too"
            )
        if end["op"] == "refused":
            raise _refusal(end)
        for warning in end["warnings"]:
            _print(f"warning: {warning}\n", sys.stderr)
        if end["exit_code"] == 0:
            return [self._result(rank) for rank in range(self._nprocs)]
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


def _start_conductor(spec: Job, link: socket.socket) -> "subprocess.Popen[bytes] | Child":
    """The process that runs the job, and with it a nursery: ours where that can be inherited."""
    environ = {**settings.environment(), **placement.shared_environ(spec)}
    forked = None
    if inherit.can():
        forked = inherit.fork_conductor(spec.job_id, spec.warmth, link, environ)
    return forked or subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "torch_xdist.launcher.conductor"),
            *(spec.job_id, spec.warmth),
        ],
        stdin=link.fileno(),
        env=environ,
        start_new_session=True,
    )


def _own_rank(environ: dict[str, str]) -> int | None:
    """The rank that this process is in somebody's job, or None where it is an ordinary process.

    Raises:
        NestedSpawnError: it is a rank that `spawn` started.
    """
    if here.in_spawned_rank() or settings.text(environ, "XLA_RUN_TASK") == "function":
        raise NestedSpawnError(
            f"spawn: this is rank {environ.get('RANK', '?')} of a spawn already; a rank cannot "
            "spawn ranks: call the function directly, or spawn once with more nprocs"
        )
    facts = settings.rank_facts(environ)
    if facts is not None:
        return facts.rank
    return cluster.rank_of(cluster.adopt())


def _function_job(nprocs: int | None, environ: dict[str, str]) -> Job:
    found = devices.probe()
    choice = devices.choose(environ, found)
    ranks = devices.local_ranks(nprocs, choice, environ, found)
    named = settings.text(environ, "XLA_RUN_LOG_DIR")
    return Job(
        kind="function",
        argv=sys.argv,
        nprocs=ranks,
        device=choice.kind,
        headline=devices.start_line(ranks, 1, choice, environ),
        job_id=job.new_id(),
        log_dir=named,
        state_dir=str(settings.state_dir(environ)),
        cwd=os.getcwd(),
        timeouts=settings.timeouts(environ),
        keep_logs=bool(named),
    )


def _refusal(end: Message) -> LauncherError:
    kind = getattr(errors, end["type"], LauncherError)
    return kind(end["text"])


def _print(text: str, stream: Any) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        # A closed terminal must not end the job.
        return

"""A job from its registration to its exit code: attempts, restarts, the record, the events file.

`run_job` is what `xla-run` calls in its own process and `spawn` in a process of its own. Whoever
wants to stop a job puts an `ask` into `Requests`.
"""

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_xdist.launcher import job as jobs
from torch_xdist.launcher import restarts
from torch_xdist.launcher.controller import Attempt, Ending
from torch_xdist.launcher.errors import PreflightError
from torch_xdist.launcher.job import Job
from torch_xdist.launcher.local import LocalAgent


class Requests:
    """Stop requests: from signal handlers and other threads to the attempt that runs now."""

    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._first: int | None = None
        self.asked = threading.Event()

    def ask(self, number: int, *, now: bool = False) -> None:
        """Stop as if by this signal; a second time, or `now`, without any grace."""
        self._first = self._first or number
        self.asked.set()
        if self._attempt is not None:
            self._attempt.inbox.put((-1, {"op": "ask", "signal": number, "now": now}, b""))

    def attach(self, attempt: Attempt) -> None:
        """Let requests reach this attempt; one that came before reaches it at once."""
        self._attempt = attempt
        if self._first is not None:
            attempt.inbox.put((-1, {"op": "ask", "signal": self._first}, b""))


class Events:
    """Every event as one JSON line in `LOG_DIR/events.jsonl`, and to the user interface."""

    _KEPT_BACK = ("token",)
    _NOT_FILED = ("log", "beats", "result")

    def __init__(self, path: Path, show: Callable[..., None]) -> None:
        self._show = show
        self._file: Any = None
        # A log directory that cannot be used is a warning of the agent's, and no end.
        with contextlib.suppress(OSError, PreflightError):
            jobs.private_dir(path.parent)
            self._file = open(path, "a", opener=_private)  # noqa: SIM115

    def __call__(self, event: str, **facts: Any) -> None:
        if self._file is not None and event not in self._NOT_FILED:
            shown = {key: value for key, value in facts.items() if key not in self._KEPT_BACK}
            with contextlib.suppress(OSError):
                line = {"time": time.time(), "event": event, **shown}
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()
        self._show(event, **facts)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def run_job(
    job: Job,
    payload: bytes,
    show: Callable[..., None],
    requests: Requests,
    agent: LocalAgent | None = None,
) -> Ending:
    """Run the job to its end and say how it was; never leaves a process behind.

    Args:
        agent: the one for the first attempt, where it has been started already.

    Raises:
        DuplicateJobError: a job of this name runs.
        PreflightError: the state directory cannot be used.
    """
    try:
        registration = jobs.Registration(Path(job.state_dir), job.job_id)
    except BaseException:
        if agent is not None:
            agent.end()
        raise
    root = jobs.log_root(job)
    emit = Events(root / "events.jsonl", show)
    try:
        ending = _attempts(job, payload, emit, requests, registration, agent)
        emit("end", exit_code=ending.exit_code, text=ending.text, warnings=list(ending.warnings))
        return ending
    finally:
        emit.close()
        registration.close()
        if not job.keep_logs and sys.exc_info()[0] is None and ending.exit_code == 0:
            shutil.rmtree(root, ignore_errors=True)
        if not job.log_dir:
            jobs.prune_logs(Path(job.state_dir))


def _attempts(
    job: Job,
    payload: bytes,
    emit: Events,
    requests: Requests,
    registration: jobs.Registration,
    agent: LocalAgent | None,
) -> Ending:
    history: list[restarts.Attempted] = []
    while True:
        ending = _attempt(job, len(history), payload, emit, requests, registration, agent)
        agent = None
        root = ending.failures[0] if ending.failures else None
        for failure in ending.failures:
            emit("failure", record=json.loads(failure.to_json()))
        history.append(restarts.Attempted(ending.exit_code, root, ending.steps))
        if requests.asked.is_set():
            return ending
        match restarts.decide(history, job.max_restarts):
            case restarts.Again(pause_s):
                again = f"restart {len(history)} of {job.max_restarts} in {pause_s:g} s"
                emit("note", text=f"{ending.text}\n{again}")
                if requests.asked.wait(pause_s):
                    return ending
            case restarts.Enough(exit_code, why):
                ending.exit_code = exit_code
                ending.text = f"{ending.text}\n{why}" if why else ending.text
                return ending


def _attempt(
    job: Job,
    number: int,
    payload: bytes,
    emit: Events,
    requests: Requests,
    registration: jobs.Registration,
    agent: LocalAgent | None,
) -> Ending:
    def publish(event: str, **facts: Any) -> None:
        if event == "attempt":
            registration.publish(
                attempt=number,
                address=facts["address"],
                token=facts["token"],
                log_dir=facts["log_dir"],
                argv=job.argv,
                ranks=job.nprocs,
                started=time.time(),
            )
        emit(event, **facts)

    attempt = Attempt(job, number, payload, publish)
    requests.attach(attempt)
    return attempt.run(agent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

"""A job from its registration to its exit code: attempts, restarts, its record, its events.

`run_job` is what `xla-run` calls in its own process and `spawn` in a process of its own. Whoever
wants to stop a job asks its `Requests`.
"""

import contextlib
import json
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_xdist.launcher.attempts.crew import Crew
from torch_xdist.launcher.backends.backend import AgentProcess, Backend
from torch_xdist.launcher.backends.local import ThisHost
from torch_xdist.launcher.backends.nodes import Nodes
from torch_xdist.launcher.backends.over_command import HostsOverCommand
from torch_xdist.launcher.backends.ways import way_of
from torch_xdist.launcher.facts import log_folders, placement, registry, settings
from torch_xdist.launcher.facts.errors import (
    ExitCode,
    LauncherError,
    PreflightError,
    RendezvousError,
)
from torch_xdist.launcher.facts.job import Job, new_mark
from torch_xdist.launcher.facts.log_folders import LogFolder
from torch_xdist.launcher.facts.registry import Registration
from torch_xdist.launcher.head import restarts
from torch_xdist.launcher.head.ending import Ending
from torch_xdist.launcher.head.head import Head
from torch_xdist.launcher.head.requests import Requests
from torch_xdist.launcher.on_ray.backend import OnRay
from torch_xdist.launcher.on_ray.request import request_of
from torch_xdist.launcher.shipping.sender import Shipment
from torch_xdist.launcher.viewing.events import in_turn
from torch_xdist.launcher.viewing.viewers import Viewers

_START_S = 5.0
_CLOSE_S = 2.0
_MOST_WAITING = 10_000
_NOT_FILED = ("log", "beats", "result")
_KEPT_BACK = ("token",)


class Events:
    """Makes the log folder of a job, files its events there, and cleans up after it.

    Attributes:
        folder: of this job; None where no logs are kept, and `why_none` says why.

    Args:
        show: called with every event, on the thread of the head, notes on any; must not block.
    """

    def __init__(self, job: Job, show: Callable[..., None]) -> None:
        self._job, self._show = job, show
        root = Path(job.log_root)
        # A place that the user has named is used as it is.
        self.folder = root / job.job_id if job.log_root_is_named else None
        self.why_none = "" if self.folder is not None else f"{root} does not answer"
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_made = threading.Event()
        self._keep = True
        self._thread = threading.Thread(target=self._run, name="xla-run-events", daemon=True)
        self._thread.start()
        self._is_made.wait(_START_S)

    def __call__(self, event: str, **facts: Any) -> None:
        if event not in _NOT_FILED and self._queue.qsize() < _MOST_WAITING:
            filed = {key: value for key, value in facts.items() if key not in _KEPT_BACK}
            self._queue.put(json.dumps({"time": time.time(), "event": event, **filed}) + "\n")
        self._show(event, **facts)

    def close(self, *, keep: bool) -> None:
        """File what waits; without `keep` the logs go. At most for a moment."""
        self._keep = keep
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        folder = self._made()
        self._is_made.set()
        self._file_all(folder)
        if folder is not None:
            folder.close(keep=self._keep)
            if not self._job.log_root_is_named:
                log_folders.prune(Path(self._job.log_root))
        registry.prune(Path(self._job.state_dir))

    def _made(self) -> LogFolder | None:
        """The log folder; what another user may write to, or has put in its place, is not used."""
        root = Path(self._job.log_root)
        try:
            if not self._job.log_root_is_named:
                registry.private_dir(registry.private_dir(root.parent) / root.name)
                self.folder = root / self._job.job_id
            folder = LogFolder(root, self._job.job_id)
        except PreflightError as error:
            self.why_none = str(error)
            return None
        except OSError:  # a warning of the agent's, and no end
            return None
        self.folder = folder.path
        return folder

    def _file_all(self, folder: LogFolder | None) -> None:
        fd = -1
        if folder is not None:
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                fd = os.open(folder.path / log_folders.EVENTS, flags, 0o600)
        while (line := self._queue.get()) is not None:
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.write(fd, line.encode())
        if fd >= 0:
            os.close(fd)


@dataclass
class FirstAgent:
    """The agent of the first attempt, where it was started before the job was known."""

    agent: AgentProcess
    mark: str


def run_job(
    job: Job,
    payload: bytes,
    show: Callable[..., None],
    requests: Requests,
    first: FirstAgent | None = None,
    stdin: int | None = None,
) -> Ending:
    """Run the job to its end and say how it was; never leaves a process behind.

    Args:
        show: called with every event, notes from any thread; must not block.
        stdin: a descriptor for the rank that `job.stdin_rank` names.

    Raises:
        DuplicateJobError: a job of this name runs.
        PreflightError: the state directory cannot be used.
    """
    try:
        registration = Registration(Path(job.state_dir), job.job_id)
    except BaseException:
        if first is not None:
            first.agent.end()
        raise
    viewers, ending = Viewers(job), None
    _introduce(job, registration, viewers.name)
    events = Events(job, in_turn(show, viewers))
    try:
        if events.folder is None:
            events("note", text=f"warning: no logs are kept: {events.why_none}")
        run = _Run(job, payload, events, requests, registration, stdin)
        ending = run.whole(first)
        events("end", exit_code=ending.exit_code, text=ending.text, warnings=[*ending.warnings])
        return ending
    except LauncherError as error:
        viewers.fails(int(error.exit_code), str(error))
        raise
    finally:
        code = ending.exit_code if ending is not None else None
        # What ended in an error of ours keeps its logs.
        events.close(keep=job.keep_logs or code != 0)
        registration.close(code)
        viewers.close()


def _introduce(job: Job, registration: Registration, view: str) -> None:
    """Let others find the job while it waits for its hosts; an attempt tells its own trouble."""
    limit_s = job.timeouts.graceful_s
    facts = {"argv": job.argv, "ranks": job.nprocs, "graceful_s": limit_s, "view": view}
    try:
        registration.publish(**facts, started=time.time())
    except OSError:
        with contextlib.suppress(OSError):
            registration.forget()


def backend_of(
    job: Job,
    requests: Requests | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Backend:
    """Where the agents of a job run; what its hosts ask for goes to `requests`, and `note` shows
    what it has to tell.

    Raises:
        SettingError: XLA_RUN_SECRET, which nodes need, is not set or too short.
    """
    if not job.hosts:
        return ThisHost({**job.env, **placement.shared_environ(job)})
    if job.way == "nodes":
        return Nodes(job, settings.taken_secret(), (requests or Requests()).ask, note)
    passed_on = settings.passed_on(settings.environment())
    env = {**passed_on, **job.timeouts.to_environ(), **job.env}
    if job.way == "ray":
        return OnRay(job, request_of(job), env, note)
    way = way_of(job.way, job.way_command)
    return HostsOverCommand(way, job.hosts, job.python, env, inside=job.inside, note=note)


class _Run:
    """The attempts of one job."""

    def __init__(
        self,
        job: Job,
        payload: bytes,
        events: Events,
        requests: Requests,
        registration: Registration,
        stdin: int | None,
    ) -> None:
        self._job, self._payload, self._events = job, payload, events
        self._requests, self._registration, self._stdin = requests, registration, stdin
        limit_s = job.timeouts.time_limit_s
        self._ends_at_s = None if math.isinf(limit_s) else time.monotonic() + limit_s
        self._shipment = Shipment.of(job)
        self._backend = backend_of(job, requests, self._note)
        self._crew = Crew(job, self._backend, self._note, requests.wait)
        self._begun = 0

    def whole(self, first: FirstAgent | None) -> Ending:
        """All attempts; then the backend is told how it ended, whatever the end is."""
        code, text = int(ExitCode.INTERNAL), "the launcher failed"
        try:
            ending = self.attempts(first)
            code, text = ending.exit_code, ending.text
            return ending
        except LauncherError as error:
            code, text = int(error.exit_code), str(error)
            raise
        finally:
            self._backend.close(code, text.partition("\n")[0])

    def attempts(self, first: FirstAgent | None) -> Ending:
        """One after the other, until one is the last."""
        history: list[restarts.Attempted] = []
        if (stopped := self._line_up_first()) is not None:
            return stopped
        while True:
            ending = self._attempt(first)
            first = None
            root = ending.failures[0] if ending.failures else None
            for failure in ending.failures:
                self._events("failure", record=json.loads(failure.to_json()))
            history.append(restarts.Attempted(ending.exit_code, root, ending.step, ending.resumed))
            if self._requests.wait():
                return ending
            budgets = self._job.max_restarts, self._job.max_preemptions
            match restarts.decide(history, *budgets, fence_s=ending.fence_s):
                case restarts.Again(pause_s, told):
                    self._note(f"{ending.text}\n{told}")
                    if self._requests.wait(pause_s):
                        return ending
                    self._crew.next_attempt(ending.blamed)
                    if not self._crew.line_up(self._wait_s()):
                        if not self._requests.wait():
                            ending.text += f"\nno further attempt: {self._crew.shortage()}"
                        return ending
                case restarts.Enough(exit_code, why):
                    ending.exit_code = exit_code
                    ending.text = f"{ending.text}\n{why}" if why else ending.text
                    if self._crew.changes:
                        self._note(f"{len(history)} attempts: {'; '.join(self._crew.changes)}")
                    return ending

    def _line_up_first(self) -> Ending | None:
        """Settle on the hosts of the first attempt; the end, where the job is told to stop first.

        Raises:
            RendezvousError: too few have come.
        """
        if self._crew.line_up(self._wait_s()):
            return None
        for number, _ in self._requests.new():
            return Ending.stopped(number)
        raise RendezvousError(
            f"rendezvous: {self._crew.shortage()}, after {self._wait_s():.0f} s; start the others, "
            "or raise --rendezvous-timeout"
        )

    def _wait_s(self) -> float:
        """How long hosts may take that come by themselves."""
        left_s = math.inf if self._ends_at_s is None else self._ends_at_s - time.monotonic()
        return min(self._job.timeouts.rendezvous_s, left_s)

    def _attempt(self, first: FirstAgent | None) -> Ending:
        """One attempt, without the hosts to which it is due that it could not begin.

        Raises:
            LauncherError: it cannot begin.
        """
        while True:
            try:
                ending = self._headed(first)
            except LauncherError as error:
                if not self._crew.goes_on_without(dict.fromkeys(error.hosts, ""), str(error)):
                    short = self._crew.shortage() if error.hosts else ""
                    raise type(error)(f"{error}; {short}" if short else str(error)) from error
            else:
                has_begun = not ending.failures or ending.failures[0].kind != "launch"
                if has_begun or not self._crew.goes_on_without(ending.blamed, ending.text):
                    return ending
            first = None

    def _headed(self, first: FirstAgent | None) -> Ending:
        number, self._begun = self._begun, self._begun + 1
        folder = self._events.folder
        head = Head(
            self._crew.job,
            number,
            self._payload,
            self._emit,
            self._requests,
            self._backend,
            mark=first.mark if first is not None else new_mark(),
            log_dir=folder / f"attempt-{number}" if folder is not None else None,
            ends_at_s=self._ends_at_s,
            secret=self._backend.rank_secret(number),
            shipment=self._shipment,
        )
        return head.run(first.agent if first is not None else None, self._stdin)

    def _emit(self, event: str, **facts: Any) -> None:
        if event == "attempt":
            self._publish(facts)
            if self._job.hosts:
                facts["labels"] = self._crew.job.labels()
        self._events(event, **facts)

    def _note(self, text: str) -> None:
        self._events("note", text=text)

    def _publish(self, facts: dict[str, Any]) -> None:
        """Write the record for `xla-run ps`; a disk without room for it is a warning."""
        try:
            self._registration.publish(
                attempt=facts["number"],
                address=facts["address"],
                token=facts["token"],
                log_dir=facts["log_dir"],
                ranks=self._crew.job.nprocs,
                hosts=[host.name for host in self._crew.job.hosts],
                started=time.time(),
            )
        except OSError as error:
            with contextlib.suppress(OSError):
                self._registration.forget()
            text = (
                f"warning: the record of this job cannot be written ({error.strerror}); the job "
                "goes on, but `xla-run ps` and `stop` will not find it"
            )
            self._events("note", text=text)

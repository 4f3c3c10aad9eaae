"""The head of a job: starts the agents, keeps what is seen of every rank, and acts on the verdict.

All state is owned by the thread that calls `run`; the threads of gRPC and signal handlers only put
messages into its queue. What to think of what was seen is decided in `verdict` and `standing`.
"""

import secrets
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch_xdist.launcher import log_ends
from torch_xdist.launcher.backends.backend import AgentProcess, Backend, Plane
from torch_xdist.launcher.facts.errors import ExitCode, LauncherError, error_of
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.placement import Meeting
from torch_xdist.launcher.facts.records import Failure
from torch_xdist.launcher.head import profiles, report, sight, standing, start, verdict
from torch_xdist.launcher.head.ending import Ending
from torch_xdist.launcher.head.fellows.fellows import Fellows, NoFellows
from torch_xdist.launcher.head.fellows.start import start_of
from torch_xdist.launcher.head.hosts import Hosts, HostState
from torch_xdist.launcher.head.inbox import Inbox
from torch_xdist.launcher.head.pace import Pace
from torch_xdist.launcher.head.questions import Questions
from torch_xdist.launcher.head.requests import Requests
from torch_xdist.launcher.head.sight import Clock, Sight
from torch_xdist.launcher.log_ends import LogEnds
from torch_xdist.launcher.shipping import sender
from torch_xdist.launcher.shipping.sender import Sending, Shipment
from torch_xdist.system.frames import Message

Emit = Callable[..., None]
# Those that exchange with a rank that is gone find that out by themselves, in a third of a second
# where the host is not busy; where one has, the others do. Whether they exchange, the last
# heartbeats cannot tell: they may be older than the first collective.
_COLLECT_S = 1.0
_COLLECT_THE_REST_S = 2.0
_TICK_S = 0.25
_STACKS_WAIT_S = 1.5
_MOST_AT_ONCE = 200
_BEATS_MISSED = 2
_FELLOWS_S = 10.0
_UNSHIP_S = 5.0


class Head:
    """One attempt of a job, from the first process to the last.

    Args:
        mark: "NAME=value", in the environment of every process of this attempt and of no other.
        log_dir: of this attempt; None: no logs are kept.
        ends_at_s: on the monotonic clock, when the job has had its time; None: never.
        secret: what the ranks seal with; b"": one is made.
        shipment: the code that hosts get a copy of; None: they have it.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        payload: bytes,
        emit: Emit,
        requests: Requests,
        backend: Backend,
        *,
        mark: str,
        log_dir: Path | None,
        ends_at_s: float | None = None,
        secret: bytes = b"",
        shipment: Shipment | None = None,
    ) -> None:
        self.job, self.number = job, number
        self._log_dir = str(log_dir) if log_dir is not None else ""
        self._payload, self._emit, self._requests = payload, emit, requests
        self._backend, self._mark, self._ends_at_s = backend, mark, ends_at_s
        self._clock = Clock()
        self.sight = Sight(job, number, self._clock)
        self._inbox = Inbox()
        self._token, self._secret = secrets.token_hex(32), secret or secrets.token_bytes(32)
        self._asked: int | None = None
        self._ending: Ending | None = None
        self._released = self._started = False
        self._shown: set[str] = set()
        self._hangs, self._pace = standing.HangWatch(job.timeouts, self._note), Pace()
        self._questions = Questions(self._inbox.tell, requests, self._status)
        self._handlers: dict[str, Callable[[HostState, Message, bytes], None]] = {
            **dict.fromkeys(start.OPS, self._on_start),
            "unshipped": self._on_unshipped,
            log_ends.OP: lambda _, message, blob: self._log_ends.take(message, blob),
            **dict.fromkeys(sight.OPS, self._on_rank),
            "log": self._on_log,
            "note": self._on_note,
            "stacks": self._on_stacks,
            **dict.fromkeys(profiles.OPS, lambda _, *told: self._questions.on_profile(*told)),
            "all_ended": self._on_all_ended,
            "broken": self._on_broken,
            "gone": self._on_gone,
            "leaves": self._on_leaves,
        }
        self._fellows = NoFellows(job)
        self._log_ends = LogEnds(self._log_dir)
        self._sending = Sending(shipment, self._inbox.put, self._note, emit)

    # ---- the course of an attempt --------------------------------------------------------------

    def run(self, agent: AgentProcess | None = None, stdin: int | None = None) -> Ending:
        """Run it to its end; afterwards nothing of it is alive.

        Args:
            agent: that of host 0, where it has been started already.
            stdin: a descriptor for the rank that is to have it.
        """
        agents = [agent] if agent is not None else []
        try:
            for index in range(len(agents), len(self._backend.hosts())):
                told = self.job.job_id, self.job.warmth, self._mark
                agents.append(self._backend.start(index, *told))
            # gRPC takes 0.2 s to import; the agents are on their way already.
            from torch_xdist.launcher.control import Server

            server = Server(
                *(self._token, self._inbox.put, self._questions.answer), agents=len(agents)
            )
        except BaseException:
            for started in agents:
                started.end()
            raise
        self._hosts = Hosts.of(agents, self.job)
        self._questions.of(self._hosts)
        try:
            self._connect(Plane(server, self._inbox.put), stdin)
            self._begin(server.address)
            self._requests.attach(lambda: self._inbox.tell({"op": "asked"}))
            self._watch()
            assert self._ending is not None
            return self._finish(self._ending)
        except LauncherError as error:
            self._fellows.tell_end(int(error.exit_code), str(error))
            raise
        finally:
            self._sending.close()
            self._hosts.send({"op": "bye"})
            self._hosts.end()
            self._fellows.close()
            server.close()

    def _connect(self, plane: Plane, stdin: int | None) -> None:
        for state in self._hosts:
            config = self._hosts.config(state, self.job)
            has_stdin = self.job.stdin_rank is not None and self.job.stdin_rank in state.ranks
            state.send = state.agent.connect(plane, config, stdin if has_stdin else None)

    def _begin(self, address: str) -> None:
        facts = {"number": self.number, "address": address, "token": self._token}
        self._emit("attempt", **facts, log_dir=self._log_dir)
        if self.job.kind == "function":
            self._hosts.send({"op": "payload"}, self._payload)
        control = f"{self.job.way}:{socket.gethostname()}" if self.job.hosts else address
        meeting = Meeting(control, secret=self._secret)
        if self.job.part is not None:
            self._fellows = Fellows(self.job, self._inbox.tell)
        self._start = start_of(
            *(self._fellows, self.job, self.number, self._hosts, meeting),
            *(self._log_dir, self._note, self._on_started, self._sending),
        )
        self._rendezvous = standing.RendezvousWatch(
            *(self.job.world_size, self._clock.now_s(), self.job.timeouts, self._note),
            silence=self._start.silence,
        )

    def _on_started(self, headline: str) -> None:
        self._emit("start", text=headline)
        self._started = True

    def _watch(self) -> None:
        """Take messages until there is an ending."""
        while self._ending is None:
            self._take_one(self._pace.wait_s(_TICK_S))
            self._questions.keep_time()
            if self._ending is None:
                self._pace.keep(self._decide)

    def _take_one(self, wait_s: float) -> None:
        item = self._inbox.take(wait_s)
        if item is None:
            self._clock.now_s()
            if (found := self._hosts.first_gone()) is not None:
                self._on_gone(found[0], {"why": found[1]}, b"")
            return
        self._clock.now_s()
        self._take(*item)
        # What is there already is one picture: judge it as a whole. Ranks that print without end
        # must not keep the judge waiting.
        for _ in range(_MOST_AT_ONCE):
            if (item := self._inbox.take()) is None:
                return
            self._take(*item)

    def _take_for(self, limit_s: float, done: Callable[[], bool]) -> None:
        end_s = time.monotonic() + limit_s
        while not done() and (left_s := end_s - time.monotonic()) > 0:
            self._take_one(min(left_s, _TICK_S))

    # ---- what is seen --------------------------------------------------------------------------

    def _take(self, host_index: int, message: Message, blob: bytes) -> None:
        op = message["op"]
        self._pace.heard(op)
        if op == "asked":
            self._obey_requests()
        elif op == "fellow":
            self._on_fellow(message)
        elif op == "question":
            self._questions.take(message["question"])
        elif (handler := self._handlers.get(op)) is not None:
            handler(self._hosts[host_index], message, blob)
        else:
            self._note(f"warning: host {host_index} says {op!r}, which is unknown here")

    def _on_rank(self, _: HostState, message: Message, blob: bytes) -> None:
        news = self.sight.take(message, blob)
        if news is not None:
            self._emit(news.pop("event"), **news)

    def _on_start(self, state: HostState, message: Message, _: bytes) -> None:
        if self._ending is None:
            self._start.take(state, message)
            if message["op"] in sender.OPS:
                self._rendezvous.went_on(self._clock.now_s(), lambda: self._sending.unfinished)
            self.sight.place(state.ranks, state.name)

    def _on_unshipped(self, state: HostState, message: Message, _: bytes) -> None:
        self._sending.take(state.index, message)

    def _on_log(self, _: HostState, message: Message, __: bytes) -> None:
        self._emit("log", **{name: message[name] for name in ("rank", "lines", "unfinished")})
        self._tell_unshown(message["unshown"])

    def _tell_unshown(self, lines: int) -> None:
        if lines:
            self._emit("note", text=f"[{lines} lines not shown, they are in the logs]")

    def _on_note(self, state: HostState, message: Message, _: bytes) -> None:
        self._note(self._hosts.told(state, message))

    def _on_all_ended(self, state: HostState, _: Message, __: bytes) -> None:
        state.all_ended = True

    def _on_stacks(self, state: HostState, message: Message, _: bytes) -> None:
        state.stacks = dict(message["stacks"])
        self._questions.on_stacks()

    def _on_broken(self, state: HostState, message: Message, _: bytes) -> None:
        failure = Failure(
            state.ranks[0], "launch", message=message["text"].strip(), time=self._clock.now_s()
        )
        self._end(int(ExitCode.INTERNAL), (self.sight.identified(failure),))

    def _on_gone(self, state: HostState, message: Message, _: bytes) -> None:
        """The agent's stream ended; before `bye` that means the agent died."""
        state.gone = True
        if self._ending is not None:
            return
        said_hello = state.facts is not None
        gone = state.agent.explain(message["why"], state.name, has_said_hello=said_hello)
        if gone.is_lost:
            self.sight.lose(state.ranks, gone.text)
        elif gone.exit_code != ExitCode.INTERNAL:
            raise error_of(gone.exit_code, gone.text).due_to(state.index)
        else:
            self._on_broken(state, {"text": gone.text}, b"")

    def _on_leaves(self, state: HostState, message: Message, _: bytes) -> None:
        """The host is taken away soon: all ranks may save, as at a stop."""
        if self._ending is None:
            self._asked = int(signal.SIGTERM)
            self.sight.lose(state.ranks, message["why"], message.get("kind", "host_lost"))

    def _on_fellow(self, message: Message) -> None:
        """Another host says something that has a head of its own."""
        ending = self._fellows.take(message)
        self._ending = self._ending or ending
        if self._ending is None:
            self._start.go_on()

    # ---- what is asked from outside ------------------------------------------------------------

    def _obey_requests(self) -> None:
        """The user asked to stop: by signal, by `xla-run stop`, or by ending `spawn`'s process."""
        for number, now in self._requests.new():
            if self._asked is not None or now:
                self._hosts.send({"op": "stop", "signal": signal.SIGKILL, "grace_s": 0.0})
            self._asked = number
            self._ending = self._ending or Ending.stopped(number)

    def _status(self) -> Message:
        return standing.status(self.job, self.number, self.sight)

    # ---- what to do about it -------------------------------------------------------------------

    def _decide(self) -> None:
        now_s = self._clock.now_s()
        if self.sight.has_beats():
            self._emit("beats", **self._status())
        absent = self._start.absent_ranks(self.sight.absent())
        if (not self._started or absent) and (late := self._late(absent, now_s)):
            self._end(int(ExitCode.RENDEZVOUS), (late,))
        ranks = self.sight.ranks()
        in_doubt = self._hosts.are_in_doubt(_BEATS_MISSED * self.job.timeouts.beat_s)
        judged = verdict.judge(ranks, now_s, self._fellows.limits(now_s), in_doubt=in_doubt)
        match judged:
            case verdict.Wait():
                for notice in judged.notices:
                    self._note(notice)
                self._release_if_all_finished()
                if (found := self._hangs.look(ranks, now_s)) is not None:
                    self._act_on_hang(found)
                self._ending = self._ending or self._fellows.left_early(ranks, now_s)
                self._check_time()
            case verdict.Done():
                self._ending = Ending(0, warnings=judged.warnings)
            case verdict.Stop():
                self._ending = Ending(judged.exit_code, judged.failures, judged=True)

    def _late(self, absent: list[int], now_s: float) -> Failure | None:
        found = self._rendezvous.look(absent, now_s, self._start.absent_names())
        first = self._start.first_absent()
        return replace(found, rank=first) if found and first is not None else found

    def _release_if_all_finished(self) -> None:
        if self._released or not self.sight.have_all_finished():
            return
        if self._fellows.have_all_finished():
            self._released = True
            self._hosts.send({"op": "release"})

    def _check_time(self) -> None:
        if self._ends_at_s is not None and time.monotonic() >= self._ends_at_s:
            self._asked = int(signal.SIGTERM)
            self._ending = Ending.out_of_time(self.job.timeouts.time_limit_s)

    def _act_on_hang(self, found: standing.Hang) -> None:
        self._emit("note", text=found.sentence)
        if found.level in ("stacks", "kill"):
            self._hosts.ask_stacks()
        if found.level == "kill":
            self._take_for(_STACKS_WAIT_S, lambda: self._hosts.stacks() is not None)
            behind, stacks = found.behind or tuple(self.sight.seen), self._hosts.stacks() or {}
            failure = found.failure(behind, stacks, self._clock.now_s())
            self._end(int(ExitCode.HANG), (self.sight.identified(failure),))

    def _note(self, text: str) -> None:
        """Show a line once."""
        if text not in self._shown:
            self._shown.add(text)
            self._emit("note", text=text)

    def _end(self, exit_code: int, failures: tuple[Failure, ...]) -> None:
        if self._ending is None:
            self._ending = Ending(exit_code, failures)

    # ---- the end -------------------------------------------------------------------------------

    def _finish(self, ending: Ending) -> Ending:
        """Take everything down, then say how it was."""
        first = ending.failures[0] if ending.failures else None
        text = report.describe(self.sight.identified(first)) if first else ending.text
        self._fellows.tell_end(ending.exit_code, text)
        if ending.failures:
            self._collect()
        self._tear_down(ending)
        self._part_from_copies(ending)
        # Host 0 serves what the ranks of the others have met at, until these have ended.
        self._take_for(_FELLOWS_S, self._fellows.have_left)
        self._tell_unshown(self._inbox.unshown)
        last = verdict.judge(self.sight.ranks(), self._clock.now_s(), self.job.timeouts)
        if ending.judged and isinstance(last, verdict.Stop):
            ending = replace(ending, exit_code=last.exit_code, failures=last.failures)
        failures = tuple(self.sight.identified(failure) for failure in ending.failures)
        self._log_ends.ask(self._start.own_logs_of([failure.rank for failure in failures]))
        self._take_for(log_ends.LIMIT_S, self._log_ends.have_come)
        first = failures[0] if failures else None
        logs = self._log_ends.told(first.rank, self._start.log_place(first.rank)) if first else ""
        exception = self.sight.exceptions.get(first.rank, b"") if first else b""
        return replace(
            ending,
            failures=failures,
            text=report.failure_text(failures, logs) if first else ending.text,
            results=self.sight.results,
            exception=exception if first and first.kind in ("exception", "pickle") else b"",
            step=max(self.sight.steps(), default=0),
            resumed=self.sight.resumed(),
            blamed=self._hosts.blamed(failures, ending.exit_code),
            fence_s=self._hosts.fence_s(),
        )

    def _collect(self) -> None:
        """Ranks that fail of the same cause do so at the same time: let them say it."""
        before = self.sight.failed()
        self._take_for(_COLLECT_S, lambda: self._hosts.are_over() or self.sight.failed() > before)
        if self.sight.failed() > before:
            self._take_for(_COLLECT_THE_REST_S, self._hosts.are_over)

    def _tear_down(self, ending: Ending) -> None:
        if self._hosts.are_over():
            return
        limits = self.job.timeouts
        grace_s = limits.graceful_s if self._asked else limits.grace_s
        number = self._asked or signal.SIGTERM
        if number == signal.SIGHUP:
            number = signal.SIGTERM
        if ending.exit_code == 0:
            grace_s = 0.5
        self._hosts.send({"op": "stop", "signal": int(number), "grace_s": grace_s})
        self._take_for(grace_s + 10.0, self._hosts.are_over)

    def _part_from_copies(self, ending: Ending) -> None:
        """The code that was shipped goes, unless the next attempt starts in it."""
        again = self.number < self.job.max_restarts and not self._asked
        self._sending.leave(keep=again and ending.exit_code != 0)
        self._take_for(_UNSHIP_S, lambda: self._sending.have_left(self._hosts.gone()))

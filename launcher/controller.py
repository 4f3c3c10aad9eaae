"""The head of a job: starts the agents, keeps what is seen of every rank, and acts on the verdict.

All state is owned by the thread that calls `run`; gRPC's threads and signal handlers only put
messages into its queue. What to think of what was seen is decided in `verdict` and `progress`.
"""

import queue
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch_xdist.launcher import placement, progress, report, verdict
from torch_xdist.launcher.coordinator import free_port
from torch_xdist.launcher.errors import ExitCode
from torch_xdist.launcher.frames import Message
from torch_xdist.launcher.job import Job, log_root
from torch_xdist.launcher.local import LocalAgent
from torch_xdist.launcher.records import Failure, ranks_text
from torch_xdist.launcher.sight import Sight

Emit = Callable[..., None]
_COLLECT_S = 0.25
_TICK_S = 0.25
_STACKS_WAIT_S = 1.5
_MOST_AT_ONCE = 200
# Ranks may differ and still meet; ranks that differ and stand still do not.
_DIVERGED_S = 3.0


@dataclass
class Ending:
    """How an attempt ended."""

    exit_code: int
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()
    text: str = ""
    results: dict[int, bytes] = field(default_factory=dict)
    exception: bytes = b""
    judged: bool = False
    steps: int = 0


class Attempt:
    """One attempt of a job, from the first process to the last."""

    def __init__(self, job: Job, number: int, payload: bytes, emit: Emit) -> None:
        self.job, self.number = job, number
        self.inbox: queue.SimpleQueue[tuple[int, Message, bytes]] = queue.SimpleQueue()
        self.log_dir = log_root(job) / f"attempt-{number}"
        self.sight = Sight(job, number)
        self.token = secrets.token_hex(32)
        self.address = ""
        self.coordinator = ""
        self._payload, self._emit = payload, emit
        self._asked: int | None = None
        self._ending: Ending | None = None
        self._released = self._all_ended = self._agent_gone = self._started = False
        self._shown: set[str] = set()
        self._hang_level = "none"
        self._stacks: dict[str, str] = {}
        self._answers: list[queue.SimpleQueue[Message]] = []

    # ---- the course of an attempt --------------------------------------------------------------

    def run(self, agent: LocalAgent | None = None) -> Ending:
        """Run it to its end; afterwards nothing of it is alive."""
        if agent is None:
            env = {**self.job.env, **placement.shared_environ(self.job)}
            agent = LocalAgent(self.job.job_id, self.job.warmth, env)
        self._agent = agent
        # gRPC takes 0.2 s to import; the agent is on its way already.
        from torch_xdist.launcher.control import Server

        server = Server(self.token, lambda *seen: self.inbox.put(seen), self._answer)
        self._server = server
        self.address = server.address
        agent.configure(
            {
                "op": "config",
                "address": server.address,
                "token": self.token,
                "host_index": 0,
                "beat_s": self.job.timeouts.beat_s,
            }
        )
        self._emit(
            "attempt",
            number=self.number,
            address=server.address,
            token=self.token,
            log_dir=str(self.log_dir),
        )
        try:
            self._begin()
            self._watch()
            assert self._ending is not None
            return self._finish(self._ending)
        finally:
            server.send(0, {"op": "bye"})
            agent.end()
            server.close()

    def _begin(self) -> None:
        self._rendezvous_s = time.monotonic()
        self._next_notice_s = self.job.timeouts.notice_s
        if self.job.kind == "function":
            self._server.send(0, {"op": "payload"}, self._payload)
        if self.job.nprocs > 1:
            order = {"op": "coordinate", "world_size": self.job.nprocs, "host": LocalAgent.host}
            self._server.send(0, order)
        else:
            self._start_ranks()

    def _start_ranks(self) -> None:
        master = (LocalAgent.host, free_port(LocalAgent.host))
        ranks = placement.rank_orders(
            self.job, self.number, self.log_dir, self.address, self.coordinator, master
        )
        self._server.send(
            0,
            {
                "op": "start",
                "ranks": ranks,
                "task": {
                    "kind": self.job.kind,
                    "argv": self.job.argv,
                    "sys_path": self.job.sys_path,
                    "beat_s": self.job.timeouts.beat_s,
                },
                "cwd": self.job.cwd,
                "log_dir": str(self.log_dir),
                "tee": self._teed(),
            },
        )
        self._emit("start", text=self.job.headline)
        self._started = True

    def _teed(self) -> list[int]:
        """The ranks whose lines are shown: all, none, or "0,2"."""
        if self.job.tee in ("all", "none"):
            return list(self.sight.seen) if self.job.tee == "all" else []
        return [int(rank) for rank in self.job.tee.split(",")]

    def _watch(self) -> None:
        """Take messages until there is an ending."""
        while self._ending is None:
            self._take_one(_TICK_S)
            if self._ending is None:
                self._decide()

    def _take_one(self, wait_s: float) -> None:
        try:
            _, message, blob = self.inbox.get(timeout=wait_s)
        except queue.Empty:
            if self._agent.poll() is not None:
                self._on_gone({"why": f"its process ended with code {self._agent.poll()}"}, b"")
            return
        self._take(message, blob)
        # What is there already is one picture: judge it as a whole. Ranks that print without end
        # must not keep the judge waiting.
        for _ in range(_MOST_AT_ONCE):
            if self.inbox.empty():
                return
            _, message, blob = self.inbox.get()
            self._take(message, blob)

    def _take_for(self, limit_s: float, done: Callable[[], bool]) -> None:
        end_s = time.monotonic() + limit_s
        while not done() and (left_s := end_s - time.monotonic()) > 0:
            self._take_one(min(left_s, _TICK_S))

    # ---- what is seen --------------------------------------------------------------------------

    def _take(self, message: Message, blob: bytes) -> None:
        news = self.sight.take(message, blob)
        if news:
            self._emit(news.pop("event"), **news)
        handler = getattr(self, f"_on_{message['op']}", None)
        if handler is not None:
            handler(message, blob)

    def _on_coordinator(self, message: Message, _: bytes) -> None:
        self.coordinator = message["address"]
        self._start_ranks()

    def _on_log(self, message: Message, _: bytes) -> None:
        self._emit("log", rank=message["rank"], lines=message["lines"])
        if message["unshown"]:
            self._emit("note", text=f"[{message['unshown']} lines not shown, they are in the logs]")

    def _on_note(self, message: Message, _: bytes) -> None:
        self._note(message["text"])

    def _on_all_ended(self, _message: Message, _: bytes) -> None:
        self._all_ended = True

    def _on_stacks(self, message: Message, _: bytes) -> None:
        self._stacks = dict(message["stacks"])
        for answer in self._answers:
            answer.put({"stacks": self._stacks})
        self._answers.clear()

    def _on_broken(self, message: Message, _: bytes) -> None:
        failure = self.sight.identified(
            Failure(0, "launch", message=message["text"].strip(), time=time.monotonic())
        )
        self._end(int(ExitCode.INTERNAL), (failure,))

    def _on_gone(self, message: Message, _: bytes) -> None:
        """The agent's stream ended; before `bye` that means the agent died."""
        self._agent_gone = True
        if self._ending is None:
            text = f"the agent of host {self.sight.host or '?'} has died ({message['why']})"
            self._on_broken({"text": text}, b"")

    def _on_ask(self, message: Message, _: bytes) -> None:
        """The user asked to stop: by signal, by `xla-run stop`, or by ending `spawn`'s process."""
        number = int(message["signal"])
        if self._asked is not None or message.get("now"):
            self._server.send(0, {"op": "stop", "signal": signal.SIGKILL, "grace_s": 0.0})
        self._asked = number
        if self._ending is None:
            code = ExitCode.INTERRUPTED if number == signal.SIGINT else 128 + number
            self._ending = Ending(int(code), text=f"stopped by {signal.Signals(number).name}")

    # ---- what to do about it -------------------------------------------------------------------

    def _decide(self) -> None:
        now_s = time.monotonic()
        if not self._started or len(self.sight.arrived) < self.job.nprocs:
            self._check_rendezvous(now_s)
        workers = list(self.sight.seen.values())
        judged = verdict.judge(workers, now_s, self.job.timeouts)
        match judged:
            case verdict.Wait():
                for notice in judged.notices:
                    self._note(notice)
                self._release_if_all_finished()
                self._look_for_hangs(workers, now_s)
            case verdict.Done():
                self._ending = Ending(0, warnings=judged.warnings)
            case verdict.Stop():
                self._ending = Ending(judged.exit_code, judged.failures, judged=True)

    def _release_if_all_finished(self) -> None:
        if not self._released and all(
            seen.finished_s is not None for seen in self.sight.seen.values()
        ):
            self._released = True
            self._server.send(0, {"op": "release"})

    def _check_rendezvous(self, now_s: float) -> None:
        waited_s = now_s - self._rendezvous_s
        absent = sorted(set(self.sight.seen) - self.sight.arrived)
        if waited_s >= self.job.timeouts.rendezvous_s:
            text = (
                f"rendezvous: {ranks_text(absent)} of {self.job.nprocs} did not arrive in "
                f"{waited_s:.0f} s; look into the logs, or raise --rendezvous-timeout"
            )
            failure = Failure(absent[0], "launch", message=text, time=now_s)
            self._end(int(ExitCode.RENDEZVOUS), (failure,))
        elif waited_s >= self._next_notice_s:
            self._next_notice_s = 3 * waited_s
            self._note(f"waiting for {ranks_text(absent)} of {self.job.nprocs} to arrive")

    def _look_for_hangs(self, workers: Sequence[progress.Seen], now_s: float) -> None:
        if self.sight.still_s(now_s) >= _DIVERGED_S and (text := progress.divergence(workers)):
            self._note(text)
        compiling = [
            seen
            for seen in workers
            if seen.progress is not None
            and seen.finished_s is None
            and seen.progress.state == "compiling"
            and now_s - seen.changed_s >= self.job.timeouts.notice_s
        ]
        if compiling:
            self._note(progress.standing(compiling))
        found = progress.hang(workers, now_s, self.job.timeouts)
        if found.level == self._hang_level:
            return
        rising = progress.LEVELS.index(found.level) > progress.LEVELS.index(self._hang_level)
        self._hang_level = found.level
        if not rising:
            return
        self._emit("note", text=found.sentence)
        if found.level in ("stacks", "kill"):
            self._stacks = {}
            self._server.send(0, {"op": "stacks"})
        if found.level == "kill":
            self._take_for(_STACKS_WAIT_S, lambda: bool(self._stacks))
            behind = found.behind or tuple(self.sight.seen)
            stacks = {name: text for name, text in self._stacks.items() if int(name) in behind}
            failure = Failure(behind[0], "hang", message=found.sentence, time=now_s, stacks=stacks)
            self._end(int(ExitCode.HANG), (self.sight.identified(failure),))

    def _note(self, text: str) -> None:
        """Show a line once."""
        if text not in self._shown:
            self._shown.add(text)
            self._emit("note", text=text)

    def _end(self, exit_code: int, failures: tuple[Failure, ...]) -> None:
        if self._ending is None:
            self._ending = Ending(exit_code, failures)

    def _finish(self, ending: Ending) -> Ending:
        """Take everything down, then say how it was."""
        if ending.failures:
            # Ranks that fail of the same cause do so at the same time: let them say it.
            self._take_for(_COLLECT_S, lambda: self._all_ended)
        self._tear_down(ending)
        workers = list(self.sight.seen.values())
        last = verdict.judge(workers, time.monotonic(), self.job.timeouts)
        if ending.judged and isinstance(last, verdict.Stop):
            ending = replace(ending, exit_code=last.exit_code, failures=last.failures)
        failures = tuple(self.sight.identified(failure) for failure in ending.failures)
        shown_dir = str(self.log_dir) if self.log_dir.exists() else ""
        text = report.failure_text(failures, shown_dir) if failures else ending.text
        first = failures[0] if failures else None
        exception = self.sight.exceptions.get(first.rank, b"") if first else b""
        return replace(
            ending,
            failures=failures,
            text=text,
            results=self.sight.results,
            exception=exception if first and first.kind in ("exception", "pickle") else b"",
            steps=self.sight.steps(),
        )

    def _tear_down(self, ending: Ending) -> None:
        if self._all_ended or self._agent_gone:
            return
        limits = self.job.timeouts
        grace_s = limits.graceful_s if self._asked else limits.grace_s
        number = self._asked or signal.SIGTERM
        if number == signal.SIGHUP:
            number = signal.SIGTERM
        if ending.exit_code == 0:
            grace_s = 0.5
        self._server.send(0, {"op": "stop", "signal": int(number), "grace_s": grace_s})
        self._take_for(grace_s + 10.0, lambda: self._all_ended or self._agent_gone)

    # ---- questions from outside ----------------------------------------------------------------

    def _answer(self, question: Message) -> Message:
        """`xla-run ps | stack | stop`: runs on a thread of gRPC, so it only asks the main loop."""
        if question["op"] == "stop":
            self.inbox.put((-1, {**question, "op": "ask"}, b""))
            return {"ok": True}
        if question["op"] == "stack":
            answer: queue.SimpleQueue[Message] = queue.SimpleQueue()
            self._answers.append(answer)
            self._server.send(0, {"op": "stacks"})
            try:
                return answer.get(timeout=10.0)
            except queue.Empty:
                return {"stacks": {}}
        return self.sight.status()

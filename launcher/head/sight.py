"""What the head has seen of every rank of an attempt: it remembers, and judges nothing."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.records import MOST_RECENT, Failure, Heartbeat
from torch_xdist.system.frames import Message

_STATES = {"T": "stopped (T)", "t": "stopped by a debugger (t)", "D": "in the disk (D)"}
_FAILURE_FIELDS = frozenset({"kind", "exit_code", "type", "message", "traceback"})
# The messages that are about ranks.
OPS = ("started", "arrived", "beats", "finished", "failed", "ended")
# Who takes a host away tells its ranks first: SIGTERM and the loss of it within this time are one.
TAKEN_S = 2.0
# The loop looks at its clock several times a second: a longer gap means that it was stopped.
_GAP_S = 3.0


class Clock:
    """Monotonic seconds in which this process could run.

    The time that it was stopped in (Ctrl-Z, a frozen container) is no time in which ranks were
    silent or late.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._stopped_s = 0.0
        self._looked_s = monotonic()

    def now_s(self) -> float:
        """The time; to be asked at least every second."""
        real_s = self._monotonic()
        gap_s = real_s - self._looked_s
        if gap_s > _GAP_S:
            self._stopped_s += gap_s
        self._looked_s = real_s
        return real_s - self._stopped_s


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank as last observed. Times are seconds on the head's clock.

    `finished_s` is set when the rank said that its function returned (an agent sets it for a
    program that exited with 0). `changed_s` is when `beat` last changed. `stopped` is true where we
    had sent it a signal before it ended. `state` is that of its process, where it is worth a word.
    """

    rank: int
    last_beat_s: float = 0.0
    exit_code: int | None = None  # None: still running; -n: killed by signal n
    ended_s: float | None = None
    finished_s: float | None = None
    report: Failure | None = None
    beat: Heartbeat | None = None
    changed_s: float = 0.0
    host: str = ""
    stopped: bool = False
    oom: bool = False
    state: str = ""
    tail: tuple[str, ...] = ()

    def beating(self, now_s: float, beat: Heartbeat | None, changed_s: float) -> "Seen":
        """The same rank with another heartbeat: `replace` takes four times as long, for each."""
        past = self.exit_code, self.ended_s, self.finished_s, self.report
        return Seen(
            self.rank, now_s, *past, beat, changed_s, self.host, self.stopped, self.oom,
            self.state, self.tail,
        )  # fmt: skip


class Sight:
    """The ranks of one attempt as last heard of."""

    def __init__(self, job: Job, attempt: int, clock: Clock) -> None:
        self._job, self._attempt, self._clock = job, attempt, clock
        self.seen = {rank: Seen(rank) for rank in job.ranks()}
        local = [local for count in job.shares() for local in range(count)]
        self._local = dict(zip(job.ranks(), local, strict=True))
        self.pids: dict[int, int] = {}
        self.arrived: set[int] = set()
        self.results: dict[int, bytes] = {}
        self.exceptions: dict[int, bytes] = {}
        self._has_beats = False

    def take(self, message: Message, blob: bytes) -> Message | None:
        """Remember what an agent says; an event to show, if it is worth one."""
        match message["op"]:
            case "started":
                return self._started(message)
            case "arrived":
                return self._arrive(int(message["rank"]))
            case "beats":
                self._beats(message)
            case "finished":
                return self._finished(message, blob)
            case "failed":
                self._failed(message, blob)
            case "ended":
                return self._ended(message)
        return None

    def place(self, ranks: range, host: str) -> None:
        """The agent of these ranks has told the name of its host."""
        for rank in ranks:
            self._see(rank, host=host)

    def lose(self, ranks: range, why: str, kind: str = "host_lost") -> None:
        """Nothing is known any more of the host of these ranks: those that ran are lost with it.

        So are those that were told to end shortly before, not by us: it was taken away. Where that
        is only announced, `kind` is "preempted".
        """
        now_s = self._clock.now_s()
        for rank in ranks:
            seen = self.seen[rank]
            was_told = seen.exit_code == -signal.SIGTERM and not seen.stopped
            is_fresh = was_told and now_s - (seen.ended_s or 0.0) <= TAKEN_S
            if (seen.exit_code is None or is_fresh) and seen.report is None:
                failure = Failure(rank, kind, message=why, time=now_s)
                self._see(rank, report=self.identified(failure))

    def identified(self, failure: Failure) -> Failure:
        """The failure with everything else that is known about its rank."""
        seen = self.seen[failure.rank]
        return replace(
            failure,
            job=self._job.job_id,
            attempt=self._attempt,
            local_rank=self._local[failure.rank],
            host=failure.host or seen.host,
            pid=failure.pid or self.pids.get(failure.rank, 0),
            device=self._job.device,
            tail=failure.tail or seen.tail,
            step=failure.step or (seen.beat.step if seen.beat else None),
        )

    def ranks(self) -> list[Seen]:
        """All ranks, in order."""
        return list(self.seen.values())

    def steps(self) -> list[int]:
        """The last step of each rank, 0 where it is unknown."""
        return [seen.beat.step if seen.beat else 0 for seen in self.seen.values()]

    def resumed(self) -> int | None:
        """The step of the checkpoint that this attempt went on from; None for an unknown one."""
        told = [seen.beat.resumed for seen in self.seen.values() if seen.beat]
        return max((step for step in told if step is not None), default=None)

    def has_beats(self) -> bool:
        """Whether beats have come since this was asked last."""
        had, self._has_beats = self._has_beats, False
        return had

    def failed(self) -> set[int]:
        """The ranks that have said that they failed, or were lost, or ended otherwise than well."""
        return {one.rank for one in self.seen.values() if one.report is not None or one.exit_code}

    def have_all_finished(self) -> bool:
        return all(seen.finished_s is not None for seen in self.seen.values())

    def absent(self) -> list[int]:
        """The ranks that have not arrived."""
        return sorted(set(self.seen) - self.arrived)

    def _see(self, rank: int, **changes: Any) -> None:
        self.seen[rank] = replace(self.seen[rank], **changes)

    def _started(self, message: Message) -> Message | None:
        rank = int(message["rank"])
        self.pids[rank] = int(message["pid"])
        self._see(rank, last_beat_s=self._clock.now_s())
        if self._job.kind == "program":
            # It does not say that it has arrived.
            self.arrived.add(rank)
        return self._all_there()

    def _arrive(self, rank: int) -> Message | None:
        self.arrived.add(rank)
        return self._all_there()

    def _all_there(self) -> Message | None:
        """A rank may say that it has arrived before its nursery says that it has started."""
        whole = len(self.arrived) == len(self.pids) == self._job.nprocs
        return {"event": "arrived", "pids": self.pids} if whole else None

    def _beats(self, message: Message) -> None:
        """What an agent's `Digest` tells of its ranks."""
        now_s = self._clock.now_s()
        self._has_beats = True
        for rank in message["same"]:
            seen = self.seen[rank]
            self.seen[rank] = seen.beating(now_s, seen.beat, seen.changed_s)
        for ranks, data in message["beats"]:
            fresh = Heard(Heartbeat.from_json(data))
            for rank in ranks:
                seen = self.seen[rank]
                # An agent sends beats in bundles: one may be older than the rank's last words.
                is_old = seen.finished_s is not None or seen.report is not None
                beat, changed_s = seen.beat, seen.changed_s
                if not is_old:
                    beat, changed_s = fresh.of(seen, now_s)
                self.seen[rank] = seen.beating(now_s, beat, changed_s)
        for name, letter in message["states"].items():
            self._see(int(name), state=_STATES.get(letter, ""))

    def _last_words(self, message: Message, now_s: float) -> dict[str, Any]:
        """What a rank that ends says of itself beside that."""
        if (data := message.get("heartbeat")) is None:
            return {}
        beat, changed_s = Heard(Heartbeat.from_json(data)).of(
            self.seen[int(message["rank"])], now_s
        )
        return {"beat": beat, "changed_s": changed_s}

    def _finished(self, message: Message, blob: bytes) -> Message:
        rank, now_s = int(message["rank"]), self._clock.now_s()
        self._see(rank, finished_s=now_s, **self._last_words(message, now_s))
        self.results[rank] = blob
        return {"event": "finished", "rank": rank}

    def _failed(self, message: Message, blob: bytes) -> None:
        rank, now_s = int(message["rank"]), self._clock.now_s()
        facts = {key: value for key, value in message.items() if key in _FAILURE_FIELDS}
        self.exceptions[rank] = blob
        self._see(rank, **self._last_words(message, now_s))
        self._see(rank, report=self.identified(Failure(rank, time=now_s, **facts)))

    def _ended(self, message: Message) -> Message:
        rank, code = int(message["rank"]), int(message["code"])
        self._see(
            rank,
            exit_code=code,
            ended_s=self._clock.now_s(),
            stopped=bool(message["stopped"]),
            oom=bool(message["oom"]),
            tail=tuple(message["tail"]),
        )
        return {"event": "ended", "rank": rank, "code": code}


class Heard:
    """A heartbeat that several ranks of a host may say, and what it is for each: it names only
    programs that they have not named before."""

    def __init__(self, beat: Heartbeat) -> None:
        self._beat = beat
        self._whole: dict[tuple[tuple[int, str], ...], Heartbeat] = {}

    def of(self, seen: Seen, now_s: float) -> tuple[Heartbeat, float]:
        """That of one rank, and since when it is so."""
        known = seen.beat.recent if seen.beat is not None else ()
        # Ranks that say the same have mostly said the same before.
        if (whole := self._whole.get(known)) is None:
            whole = self._whole[known] = replace(self._beat, recent=self._joined(known))
        if seen.beat is not None and whole == seen.beat:
            return seen.beat, seen.changed_s
        return whole, now_s

    def _joined(self, known: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
        first = min((seq for seq, _ in self._beat.recent), default=None)
        before = tuple(one for one in known if first is None or one[0] < first)
        return (before + self._beat.recent)[-MOST_RECENT:]

"""What the controller has seen of every rank of an attempt: it remembers, and judges nothing."""

import time
from dataclasses import replace
from typing import Any

from torch_xdist.launcher import progress
from torch_xdist.launcher.frames import Message
from torch_xdist.launcher.job import Job
from torch_xdist.launcher.records import Failure, Progress

_STATES = {"T": "stopped (T)", "t": "stopped by a debugger (t)", "D": "in the disk (D)"}
_FAILURE_FIELDS = frozenset({"kind", "exit_code", "type", "message", "traceback"})


class Sight:
    """The ranks of one attempt as last heard of. Times are on this process's monotonic clock."""

    def __init__(self, job: Job, attempt: int) -> None:
        self._job, self._attempt = job, attempt
        self.seen = {rank: progress.Seen(rank) for rank in range(job.nprocs)}
        self.pids: dict[int, int] = {}
        self.arrived: set[int] = set()
        self.results: dict[int, bytes] = {}
        self.exceptions: dict[int, bytes] = {}
        self.host = ""

    def take(self, message: Message, blob: bytes) -> Message | None:
        """Remember what an agent says; an event to show, if it is worth one."""
        now_s = time.monotonic()
        match message["op"]:
            case "hello":
                self.host = str(message["host"])
                self.seen = {rank: replace(s, host=self.host) for rank, s in self.seen.items()}
            case "started":
                return self._started(message, now_s)
            case "arrived":
                return self._arrive(int(message["rank"]))
            case "beats":
                self._beats(message, now_s)
                return {"event": "beats", **self.status()}
            case "finished":
                return self._finished(message, blob, now_s)
            case "failed":
                self._failed(message, blob, now_s)
            case "ended":
                return self._ended(message, now_s)
        return None

    def identified(self, failure: Failure) -> Failure:
        """The failure with everything else that is known about its rank."""
        seen = self.seen[failure.rank]
        return replace(
            failure,
            job=self._job.job_id,
            attempt=self._attempt,
            local_rank=failure.rank,
            host=failure.host or self.host,
            pid=failure.pid or self.pids.get(failure.rank, 0),
            device=self._job.device,
            tail=failure.tail or seen.tail,
            step=failure.step or (seen.progress.step if seen.progress else None),
        )

    def still_s(self, now_s: float) -> float:
        """For how long no rank that tells its progress has changed it; 0 where one has ended."""
        told = [seen for seen in self.seen.values() if seen.progress is not None]
        if not told or any(seen.exit_code is not None for seen in self.seen.values()):
            return 0.0
        return now_s - max(seen.changed_s for seen in told)

    def steps(self) -> int:
        """The furthest step of any rank."""
        return max((seen.progress.step for seen in self.seen.values() if seen.progress), default=0)

    def status(self) -> Message:
        """How the job stands, as JSON."""
        ranks = self.seen.values()
        return {
            "job": self._job.job_id,
            "attempt": self._attempt,
            "up": sum(seen.exit_code is None and seen.rank in self.arrived for seen in ranks),
            "ranks": self._job.nprocs,
            "steps": [seen.progress.step if seen.progress else 0 for seen in ranks],
            "standing": progress.standing(list(ranks)),
            "pids": self.pids,
        }

    def _see(self, rank: int, **changes: Any) -> None:
        self.seen[rank] = replace(self.seen[rank], **changes)

    def _started(self, message: Message, now_s: float) -> Message | None:
        rank = int(message["rank"])
        self.pids[rank] = int(message["pid"])
        self._see(rank, last_beat_s=now_s)
        # A program does not say that it has arrived.
        return self._arrive(rank) if self._job.kind == "program" else None

    def _arrive(self, rank: int) -> Message | None:
        self.arrived.add(rank)
        whole = len(self.arrived) == self._job.nprocs
        return {"event": "arrived", "pids": self.pids} if whole else None

    def _beats(self, message: Message, now_s: float) -> None:
        for name, beat in message["beats"].items():
            seen = self.seen[int(name)]
            self._see(int(name), last_beat_s=now_s)
            # The agent sends beats in bundles: one may be older than the rank's last words.
            if seen.finished_s is None and seen.report is None:
                self._progress(int(name), beat.get("progress"), now_s)
        for name, letter in message["states"].items():
            self._see(int(name), state=_STATES.get(letter, ""))

    def _progress(self, rank: int, data: Message | None, now_s: float) -> None:
        if data is None:
            return
        fresh = Progress.from_json(data)
        if fresh != self.seen[rank].progress:
            self._see(rank, progress=fresh, changed_s=now_s)

    def _finished(self, message: Message, blob: bytes, now_s: float) -> Message:
        rank = int(message["rank"])
        self._progress(rank, message.get("progress"), now_s)
        self._see(rank, finished_s=now_s)
        self.results[rank] = blob
        return {"event": "finished", "rank": rank}

    def _failed(self, message: Message, blob: bytes, now_s: float) -> None:
        rank = int(message["rank"])
        facts = {key: value for key, value in message.items() if key in _FAILURE_FIELDS}
        self.exceptions[rank] = blob
        self._progress(rank, message.get("progress"), now_s)
        self._see(rank, report=self.identified(Failure(rank, time=now_s, **facts)))

    def _ended(self, message: Message, now_s: float) -> Message:
        rank, code = int(message["rank"]), int(message["code"])
        self._see(
            rank,
            exit_code=code,
            ended_s=now_s,
            stopped=bool(message["stopped"]),
            oom=bool(message["oom"]),
            tail=tuple(message["tail"]),
        )
        return {"event": "ended", "rank": rank, "code": code}

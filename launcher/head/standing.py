"""How the ranks of a job stand to each other, in sentences: who waits, who left, who is behind.

Pure, from what was last seen of every rank; times are seconds on the head's clock. The head shows
these lines, and asks `HangWatch` and `RendezvousWatch` again and again; `verdict` asks who left
early.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_xdist.launcher.facts.host import names_text
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.records import Failure, Heartbeat, ranks_text
from torch_xdist.launcher.facts.settings import OFF, Timeouts
from torch_xdist.launcher.head.sight import Seen, Sight
from torch_xdist.system.frames import Message

# A group without the rank that left may meet legitimately, but then not for long.
WAITED_S = 2.0
# A heartbeat of another host comes as late as its agent tells it, and as a lossy link repeats it.
LATE_S = 5.0
# Every rank waits for others this long before the reason is looked for.
DIVERGED_S = 3.0
LEVELS = ("none", "warn", "stacks", "kill")
_STAGES = {"outside": 0, "starting": 1}


@dataclass(frozen=True, slots=True)
class Hang:
    """How long nothing went on, what to do about it ("none", "warn", "stacks", "kill"), and who."""

    level: str
    stuck_s: float = 0.0
    behind: tuple[int, ...] = ()
    sentence: str = ""

    def failure(self, behind: Sequence[int], stacks: Mapping[str, str], now_s: float) -> Failure:
        """That of the first rank which is behind, with the stacks of those that are."""
        own = {name: text for name, text in stacks.items() if int(name) in behind}
        return Failure(behind[0], "hang", message=self.sentence, time=now_s, stacks=own)


def standing(workers: Sequence[Seen]) -> str:
    """Who is where, those behind first; "" where no rank has said anything.

    Example: "rank 2 left the loop after step 58; ranks 0, 1, 3 wait in all_reduce #59
    (optimizer_step, train.py:77)".
    """
    groups: dict[tuple[int, str], list[int]] = {}
    for worker in workers:
        phrase = _phrase(worker)
        if phrase:
            groups.setdefault(phrase, []).append(worker.rank)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], item[1][0]))
    return "; ".join(
        f"{ranks_text(ranks)} {_conjugated(text, len(ranks))}" for (_, text), ranks in ordered
    )


def status(job: Job, number: int, sight: Sight) -> Message:
    """How attempt `number` of a job stands, as JSON."""
    ranks = sight.ranks()
    return {
        "job": job.job_id,
        "attempt": number,
        "up": sum(seen.exit_code is None and seen.rank in sight.arrived for seen in ranks),
        "ranks": job.nprocs,
        "steps": sight.steps(),
        "standing": standing(ranks),
        "pids": sight.pids,
    }


def hang(workers: Sequence[Seen], now_s: float, timeouts: Timeouts) -> Hang:
    """Whether the job is stuck: no rank changed its heartbeat for the time of a level.

    A job with a rank that compiles (and still beats), or in which no rank has come to its device,
    is not judged. A rank that stopped beating while others wait is behind. One of which nothing was
    heard yet is waited for by `RendezvousWatch`.
    """
    heard_of = [seen for seen in workers if seen.last_beat_s or seen.beat is not None]
    running = [seen for seen in heard_of if seen.exit_code is None and seen.finished_s is None]
    told = [seen for seen in running if seen.beat is not None]
    silent = [seen for seen in running if now_s - seen.last_beat_s > timeouts.lost_s]
    states = {seen.rank: seen.beat.state for seen in told if seen.beat is not None}
    compiling = any(states[seen.rank] == "compiling" and seen not in silent for seen in told)
    if compiling or all(state == "outside" for state in states.values()):
        return Hang("none")
    # A rank whose beats have stopped has not gone on since its last beat, whatever it said in it.
    stuck_s = now_s - max(seen.changed_s for seen in told)
    if silent and len(silent) < len(running):
        stuck_s = max(stuck_s, min(now_s - seen.last_beat_s for seen in silent))
    level = _level(stuck_s, timeouts)
    if level == "none":
        return Hang("none", stuck_s)
    behind = tuple(seen.rank for seen in silent) or _behind(told)
    where = standing([seen for seen in workers if seen.exit_code is None or seen.finished_s])
    beats = f" ({ranks_text([s.rank for s in silent])} sent no heartbeat)" if silent else ""
    return Hang(level, stuck_s, behind, f"no rank went on for {stuck_s:.0f} s{beats}: {where}")


@dataclass(frozen=True, slots=True)
class Early:
    """A rank that finished while others need it, the sentence about it, and since when.

    `is_certain`: the others wait for this very rank, so that the job cannot go on.
    """

    seen: Seen
    sentence: str
    since_s: float
    is_certain: bool


def left_early(workers: Sequence[Seen], now_s: float, failing: bool = False) -> Early | None:
    """The rank that finished while others need it; None where there is none.

    Others need it where they say that they wait for it, or wait in a collective that comes after
    its last one; where a rank failed by losing a peer (`failing`), any rank that had finished
    before is the peer.
    """
    finished = [seen for seen in workers if seen.finished_s is not None]
    running = [seen for seen in workers if seen.finished_s is None]
    if not finished or not running:
        return None
    waiting = [seen for seen in running if seen.beat is not None and seen.beat.state == "waiting"]
    if wanted := _sure_of(finished, waiting):
        return _early(wanted, waiting, certain=True)
    waiting = [seen for seen in waiting if failing or now_s - seen.changed_s >= WAITED_S]
    gone = finished if failing and not waiting else _asked_of(finished, waiting)
    if not gone:
        return None
    return _early(gone, waiting or running, certain=False)


def _early(gone: Sequence[Seen], others: Sequence[Seen], *, certain: bool) -> Early:
    first = min(gone, key=lambda seen: (seen.finished_s or 0.0, seen.rank))
    since_s = max([first.finished_s or 0.0] + [seen.changed_s for seen in others])
    # A rank that has ended since, for want of its peer, is shown where it waited.
    as_it_was = [replace(seen, exit_code=None, state="") for seen in others]
    return Early(first, standing([*gone, *as_it_was]), since_s, certain)


def _sure_of(finished: Sequence[Seen], waiting: Sequence[Seen]) -> list[Seen]:
    """The ranks that have finished, and of which one that waits is sure to wait for them."""
    gone = {seen.rank: seen for seen in finished}
    sure: set[int] = set()
    for seen in waiting:
        wanted = [rank for rank in _waits_for(seen) if rank in gone]
        sure.update(rank for rank in wanted if _is_in_vain(seen, gone[rank]))
    by_all = max((_seq(seen) for seen in waiting if seen.beat and seen.beat.by_all), default=-1)
    return [seen for seen in finished if seen.rank in sure or _seq(seen) < by_all]


def _is_in_vain(waiting: Seen, gone: Seen) -> bool:
    """Whether what one rank says of another that has finished can only mean that it left early.

    On one host word that comes after the end of the other rank was said after it (`Digest` sees to
    that), and all that it sent is there. Between hosts both may be on their way: what it sent in
    its last collective as well. A call that is no collective comes after all of those.
    """
    since_s = waiting.last_beat_s - (gone.finished_s or 0.0)
    if waiting.host == gone.host:
        return since_s > 0
    is_later = _seq(gone) < _seq(waiting) or bool(waiting.beat and waiting.beat.waits_in)
    return is_later and since_s >= LATE_S


def _asked_of(finished: Sequence[Seen], waiting: Sequence[Seen]) -> list[Seen]:
    """The ranks that have finished, and that those who wait seem to wait for."""
    asked = {rank for seen in waiting for rank in _waits_for(seen)}
    newest = max((_seq(seen) for seen in waiting), default=-1)
    return [seen for seen in finished if _seq(seen) < newest or seen.rank in asked]


def _waits_for(seen: Seen) -> tuple[int, ...]:
    return seen.beat.waits_for if seen.beat is not None else ()


def _seq(seen: Seen) -> int:
    """The number of the last collective that it has come to; -1 where it has never said one."""
    return seen.beat.seq if seen.beat is not None else -1


def divergence(workers: Sequence[Seen]) -> str:
    """Where every rank waits for others, the first collective in which they run different programs.

    In a sentence; "" for none. Ranks may differ and still meet: only a job that cannot go on is
    looked at.
    """
    running = [seen for seen in workers if seen.exit_code is None and seen.finished_s is None]
    if not running or not all(seen.beat is not None and seen.beat.waits_for for seen in running):
        return ""
    marks: dict[int, dict[str, list[int]]] = {}
    for worker in workers:
        for seq, mark in worker.beat.recent if worker.beat is not None else ():
            marks.setdefault(seq, {}).setdefault(mark, []).append(worker.rank)
    for seq in sorted(marks):
        if len(marks[seq]) > 1:
            sides = sorted(marks[seq].items(), key=lambda side: (len(side[1]), side[1]))
            parts = [f"{ranks_text(ranks)} {_runs(len(ranks))} {mark}" for mark, ranks in sides]
            return (
                f"the ranks' programs differ at collective #{seq}: {'; '.join(parts)}; every rank "
                "must reach the same collectives in the same order with the same shapes"
            )
    return ""


def _runs(count: int) -> str:
    return "runs" if count == 1 else "run"


def _phrase(worker: Seen) -> tuple[int, str] | None:
    """(place in the order, text) of what a rank is doing; verbs as for one rank."""
    beat = worker.beat
    if worker.finished_s is not None:
        after = f" after step {beat.step}" if beat is not None and beat.step else ""
        return 0, f"left the loop{after}"
    if worker.exit_code is not None:
        return 0, "has ended"
    if worker.state:
        return 1, f"is {worker.state}" + (f" after step {beat.step}" if beat else "")
    return _phrase_of(beat) if beat is not None else None


def _phrase_of(beat: Heartbeat) -> tuple[int, str]:
    where = f" ({os.path.basename(beat.where)})" if beat.where else ""
    if beat.state == "outside":
        return 2, f"has not come to its first step{where}"
    if beat.state == "starting":
        return 3, f"starts its device, where all ranks meet{where}"
    if beat.state == "compiling":
        return 5, f"compiles for step {beat.step + 1}{where}"
    if beat.state == "waiting":
        call = beat.waits_in or f"{beat.collective or 'a collective'} #{beat.seq}"
        return 6, f"waits in {call}{where}"
    return 4, f"is in step {beat.step + 1}{where}"


_PLURAL = {
    "is": "are",
    "has": "have",
    "waits": "wait",
    "compiles": "compile",
    "starts": "start",
}


def _conjugated(text: str, count: int) -> str:
    verb, rest = text.split(" ", 1)
    if count == 1:
        return text
    return f"{_PLURAL.get(verb, verb)} {rest}".replace(" its ", " their ")


def _behind(told: Sequence[Seen]) -> tuple[int, ...]:
    """The ranks that keep the others waiting: those that are not in the newest collective."""
    places = {
        seen.rank: (_STAGES.get(beat.state, 2), beat.seq, beat.state == "waiting")
        for seen in told
        if (beat := seen.beat) is not None
    }
    newest = max(places.values())
    return tuple(rank for rank, place in places.items() if place != newest)


def _level(stuck_s: float, timeouts: Timeouts) -> str:
    limits = (timeouts.hang_kill_s, timeouts.hang_stacks_s, timeouts.hang_warn_s)
    for level, limit_s in zip(("kill", "stacks", "warn"), limits, strict=True):
        if limit_s != OFF and stuck_s >= limit_s:
            return level
    return "none"


class RendezvousWatch:
    """Names the ranks that have not arrived, ever more seldom, until the time is over.

    Args:
        since_s: when the ranks were asked to come.
        note: shows a sentence, once.
        silence: what is said of hosts that have not said a word.
    """

    def __init__(
        self,
        nprocs: int,
        since_s: float,
        timeouts: Timeouts,
        note: Callable[[str], None],
        silence: str = "no answer",
    ) -> None:
        self._nprocs, self._since_s, self._note, self._silence = nprocs, since_s, note, silence
        self._limit_s, self._next_notice_s = timeouts.rendezvous_s, timeouts.notice_s
        self._went_on_s = since_s
        self._doing: Callable[[], str] = str

    def went_on(self, now_s: float, doing: Callable[[], str]) -> None:
        """Those who are there have got on: their time begins anew.

        Args:
            doing: says what keeps their ranks from coming; "" when that is done.
        """
        self._went_on_s, self._doing = now_s, doing

    def look(
        self, absent: Sequence[int], now_s: float, silent: Sequence[str] = ()
    ) -> Failure | None:
        """The failure of a job whose ranks did not arrive in time.

        Args:
            silent: the hosts whose agents have not said a word.
        """
        waited_s = now_s - (self._since_s if silent else self._went_on_s)
        if waited_s < min(self._limit_s, self._next_notice_s):
            return None
        missing = f"{ranks_text(absent)} of {self._nprocs}"
        if silent:
            missing += f" ({names_text(silent)}: {self._silence})"
        elif doing := self._doing():
            missing += f" ({doing})"
        if waited_s >= self._limit_s:
            text = (
                f"rendezvous: {missing} did not arrive in {waited_s:.0f} s; look into the logs, "
                "or raise --rendezvous-timeout"
            )
            return Failure(absent[0], "launch", message=text, time=now_s)
        self._next_notice_s = 3 * waited_s
        self._note(f"waiting for {missing} to arrive")
        return None


class HangWatch:
    """Remembers how far a hang was told.

    Args:
        note: shows a sentence, once.
    """

    def __init__(self, timeouts: Timeouts, note: Callable[[str], None]) -> None:
        self._timeouts, self._note = timeouts, note
        self._level = "none"

    def look(self, ranks: Sequence[Seen], now_s: float) -> Hang | None:
        """The hang, where it has just become one, or a worse one."""
        still_s = now_s - max((seen.changed_s for seen in ranks), default=now_s)
        if still_s >= DIVERGED_S and (text := divergence(ranks)):
            self._note(text)
        compiling = [seen for seen in ranks if self._compiles_long(seen, now_s)]
        if compiling:
            self._note(standing(compiling))
        found = hang(ranks, now_s, self._timeouts)
        rising = LEVELS.index(found.level) > LEVELS.index(self._level)
        self._level = found.level
        return found if rising else None

    def _compiles_long(self, seen: Seen, now_s: float) -> bool:
        compiling = seen.beat is not None and seen.beat.state == "compiling"
        running = seen.finished_s is None and seen.exit_code is None
        return compiling and running and now_s - seen.changed_s >= self._timeouts.notice_s

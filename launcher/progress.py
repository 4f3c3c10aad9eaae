"""How the ranks of a job stand to each other, in sentences: who waits, who left, who is behind.

Pure, from what was last seen of every rank; times are seconds on the controller's monotonic clock.
The controller shows these lines; `verdict` asks who left early.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_xdist.launcher.records import Failure, Progress, ranks_text
from torch_xdist.launcher.settings import OFF, Timeouts

__all__ = ["Hang", "Seen", "divergence", "hang", "left_early", "ranks_text", "standing"]

# A group without the rank that left may meet legitimately, but then not for long.
WAITED_S = 2.0
LEVELS = ("none", "warn", "stacks", "kill")


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank as last observed. Times are seconds on the controller's monotonic clock.

    `finished_s` is set when the rank said that its function returned (an agent sets it for a
    plain command that exited with 0). `changed_s` is when `progress` last changed. `stopped` is
    true where we had sent it a signal before it ended. `host_heard_s` is None for a local host.
    """

    rank: int
    last_beat_s: float = 0.0
    exit_code: int | None = None  # None: still running; -n: killed by signal n
    ended_s: float | None = None
    finished_s: float | None = None
    report: Failure | None = None
    progress: Progress | None = None
    changed_s: float = 0.0
    host: str = ""
    host_heard_s: float | None = None
    stopped: bool = False
    oom: bool = False
    state: str = ""  # of the process where it is worth a word: "stopped (T)"
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hang:
    """How long nothing went on, what to do about it ("none", "warn", "stacks", "kill"), and who."""

    level: str
    stuck_s: float = 0.0
    behind: tuple[int, ...] = ()
    sentence: str = ""


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


def hang(workers: Sequence[Seen], now_s: float, timeouts: Timeouts) -> Hang:
    """Whether the job is stuck: no rank changed its progress for the time of a level.

    A job with a rank that compiles (and still beats), or whose ranks say nothing, is not judged.
    A rank that stopped beating while others wait is behind.
    """
    running = [seen for seen in workers if seen.exit_code is None and seen.finished_s is None]
    told = [seen for seen in running if seen.progress is not None]
    silent = [seen for seen in told if now_s - seen.last_beat_s > timeouts.lost_s]
    compiling = any(
        seen.progress is not None and seen.progress.state == "compiling" and seen not in silent
        for seen in told
    )
    if not told or compiling:
        return Hang("none")
    # A rank whose beats have stopped has not gone on since its last beat, whatever it said in it.
    stuck_s = now_s - max(seen.changed_s for seen in told)
    if silent and len(silent) < len(told):
        stuck_s = max(stuck_s, min(now_s - seen.last_beat_s for seen in silent))
    level = _level(stuck_s, timeouts)
    if level == "none":
        return Hang("none", stuck_s)
    behind = _behind(told, silent)
    where = standing([seen for seen in workers if seen.exit_code is None or seen.finished_s])
    beats = f" ({ranks_text([s.rank for s in silent])} sent no heartbeat)" if silent else ""
    return Hang(level, stuck_s, behind, f"no rank went on for {stuck_s:.0f} s{beats}: {where}")


def left_early(
    workers: Sequence[Seen], now_s: float, failing: bool, timeouts: Timeouts
) -> tuple[Seen, str, float] | None:
    """The rank that finished while others need it, the sentence about it, since when; or None.

    Others need it where they wait in a collective that comes after its last one; where a rank
    failed by losing a peer (`failing`), any rank that had finished before is the peer.
    """
    finished = [seen for seen in workers if seen.finished_s is not None]
    running = [seen for seen in workers if seen.finished_s is None]
    if not finished or not running:
        return None
    waiting = [
        seen
        for seen in running
        if seen.progress is not None
        and seen.progress.state == "waiting"
        and (failing or now_s - seen.changed_s >= WAITED_S)
    ]
    newest = max((seen.progress.seq for seen in waiting if seen.progress), default=None)
    gone = [
        seen
        for seen in finished
        if newest is None or seen.progress is None or seen.progress.seq < newest
    ]
    if not gone or (newest is None and not failing):
        return None
    first = min(gone, key=lambda seen: (seen.finished_s or 0.0, seen.rank))
    since_s = max([first.finished_s or 0.0] + [seen.changed_s for seen in waiting])
    # A rank that has ended since, for want of its peer, is shown where it waited.
    as_it_was = [replace(seen, exit_code=None, state="") for seen in waiting or running]
    return first, standing([*gone, *as_it_was]), since_s


def divergence(workers: Sequence[Seen]) -> str:
    """The first collective in which ranks run different programs, in a sentence; "" for none."""
    marks: dict[int, dict[str, list[int]]] = {}
    for worker in workers:
        for seq, mark in worker.progress.recent if worker.progress is not None else ():
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
    progress = worker.progress
    if worker.finished_s is not None:
        after = f" after step {progress.step}" if progress is not None and progress.step else ""
        return 0, f"left the loop{after}"
    if worker.exit_code is not None:
        return 0, "has ended"
    if worker.state:
        return 1, f"is {worker.state}" + (f" after step {progress.step}" if progress else "")
    if progress is None:
        return None
    where = f" ({os.path.basename(progress.where)})" if progress.where else ""
    if progress.state == "waiting":
        return 5, f"waits in {progress.collective or 'a collective'} #{progress.seq}{where}"
    if progress.state == "compiling":
        return 4, f"compiles for step {progress.step + 1}{where}"
    if progress.state == "starting":
        return 2, f"is starting{where}"
    if progress.state == "left":
        return 0, f"left the loop after step {progress.step}"
    return 3, f"is in step {progress.step + 1}{where}"


_PLURAL = {"is": "are", "has": "have", "waits": "wait", "compiles": "compile"}


def _conjugated(text: str, count: int) -> str:
    verb, rest = text.split(" ", 1)
    return text if count == 1 else f"{_PLURAL.get(verb, verb)} {rest}"


def _behind(told: Sequence[Seen], silent: Sequence[Seen]) -> tuple[int, ...]:
    """The ranks that keep the others waiting: silent, or not in the newest collective."""
    if silent:
        return tuple(seen.rank for seen in silent)
    places = {
        seen.rank: (seen.progress.seq, seen.progress.state == "waiting")
        for seen in told
        if seen.progress is not None
    }
    newest = max(places.values())
    return tuple(rank for rank, place in places.items() if place != newest)


def _level(stuck_s: float, timeouts: Timeouts) -> str:
    limits = (timeouts.hang_kill_s, timeouts.hang_stacks_s, timeouts.hang_warn_s)
    for level, limit_s in zip(("kill", "stacks", "warn"), limits, strict=True):
        if limit_s != OFF and stuck_s >= limit_s:
            return level
    return "none"

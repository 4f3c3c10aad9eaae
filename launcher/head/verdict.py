"""Decide about a job from what was seen of its ranks: wait, done, or stop and whom to blame.

Pure: no clock, no process, no file; times are seconds on the head's clock. The head calls `judge`
whenever something was seen, and once more when every rank has ended.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.records import OF_HOSTS, Failure, ranks_text, signal_name
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.head.sight import TAKEN_S, Seen
from torch_xdist.launcher.head.standing import left_early

# JAX's runtime aborts every process of a world within this time of losing one.
FATE_SHARING_S = 10.0
# Where only echoes were seen, the report of the cause may still be on its way.
SETTLE_S = 0.5
# An exception raised this long after a signal death may still be the cause: its report was slower.
TIE_S = 0.1
_ERROR_LINES = 12
SIGABRT = 6
SIGKILL = 9
SIGTERM = 15

# What only a rank says that has lost a peer.
_ECHO = re.compile(
    r"connection closed by (the )?(remote )?peer"
    r"|coordination ?service|coordination agent|different incarnation"
    r"|gloo [\w -]*(failed|error)|gloo/transport|heartbeat timeout"
    r"|remote process exited|lost (a|its|the) peers?"
    # What our own collectives say.
    r"|\bRankLostError\b|rank \d+ (\(pid \d+\) )?has ended\b"
    r"|another (task|rank|process) (has )?(died|failed|left)|task .{0,80} (died|unhealthy)",
    re.IGNORECASE,
)
# What any program says whose network fails; an echo only from a library that ranks talk through.
_NETWORK = re.compile(
    r"connection (reset|refused)( by (the )?(remote )?peer)?|socket closed|broken pipe",
    re.IGNORECASE,
)
_BETWEEN_RANKS = re.compile(
    r"gloo|nccl|grpc|xla ?runtime|jaxruntimeerror|[/\\]jax(lib)?[/\\]|c10d|torch[/\\.]distributed",
    re.IGNORECASE,
)
# How our own collectives name the rank that they have lost.
_ACCUSATION = re.compile(r"\brank (\d+) (?:\(pid \d+\) )?has ended\b")


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on. `notices` are to be shown once each."""

    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Every rank said that it finished: exit code 0."""

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop every rank. `failures`: the root cause first, then the others, marked as secondary."""

    failures: tuple[Failure, ...]
    exit_code: int


def judge(
    workers: Sequence[Seen], now_s: float, timeouts: Timeouts, *, in_doubt: bool = False
) -> Wait | Done | Stop:
    """Decide whether to wait, to finish, or to stop every rank and blame one.

    The blame goes, in this order, to: an exception, an exit code or a signal not sent by us that
    is no echo of a lost peer (the earliest of them); a rank that finished while others needed it;
    the earliest echo. A rank that we stopped is never blamed for dying of it. The loss of a host
    counts as a cause.

    Args:
        in_doubt: whether a host is silent and may be lost: then echoes wait for that.
    """
    failures = _failures(workers)
    causes = [failure for failure in failures if not failure.secondary]
    if causes:
        first = min(causes, key=_place_in_time)
        if _may_be_of_a_lost_host(workers, first, now_s):
            return Wait()
        return _stop(first, failures)
    early = left_early(workers, now_s, failing=bool(failures))
    if failures and early:
        return _stop(_early_exit(early.seen, early.sentence), failures)
    if failures:
        first = min(failures, key=lambda failure: failure.time)
        if in_doubt or _may_explain_itself(workers, first, now_s):
            return Wait()
        return _stop(first, failures)
    if early and (early.is_certain or now_s - early.since_s >= timeouts.exit_barrier_s):
        return _stop(_early_exit(early.seen, early.sentence), failures)
    if early:
        return Wait((early.sentence,))
    return _finish(workers, now_s, timeouts)


def exit_code_of(failure: Failure) -> int:
    """The exit code of a job whose root cause this is; never 0."""
    fixed = {
        "hang": ExitCode.HANG,
        "pickle": ExitCode.PREFLIGHT,
        "launch": ExitCode.INTERNAL,
        "host_lost": ExitCode.HOST,
        "preempted": ExitCode.PREEMPTED,
    }
    if failure.kind in fixed:
        return int(fixed[failure.kind])
    if failure.kind in ("signal", "oom"):
        return 128 + (failure.signal or SIGKILL)
    return failure.exit_code or int(ExitCode.FAILED)


def is_echo_text(text: str, context: str = "") -> bool:
    """Whether an error text is what a rank says when it has lost a peer.

    Args:
        context: the traceback, or the lines around it: where a network error came from.
    """
    if _ECHO.search(text):
        return True
    return bool(_NETWORK.search(text) and _BETWEEN_RANKS.search(f"{text}\n{context}"))


def _failures(workers: Sequence[Seen]) -> list[Failure]:
    """One failure per rank that failed, echoes marked as secondary."""
    own = [(worker, failure) for worker in workers if (failure := _failure(worker)) is not None]
    marked, clues = [], _Clues([worker for worker, _ in own], workers)
    for worker, failure in own:
        if _is_echo(worker, failure, clues):
            reason = "a host was taken away" if _is_told_to_end(failure) else "it lost a peer"
            failure = replace(failure, secondary=True, reason=reason)
        marked.append(failure)
    return marked


def _failure(worker: Seen) -> Failure | None:
    """The failure of one rank, as its wrapper reported it, or as its exit status tells."""
    if worker.report is not None:
        return worker.report
    code = worker.exit_code
    if code is None or worker.finished_s is not None:
        return None
    at_s = worker.ended_s or 0.0
    failure = Failure(worker.rank, "exit", host=worker.host, time=at_s, tail=worker.tail)
    if worker.beat is not None:
        failure = replace(failure, step=worker.beat.step)
    if code < 0:
        if worker.stopped:
            return None
        kind = "oom" if worker.oom and code == -SIGKILL else "signal"
        return replace(failure, kind=kind, signal=-code)
    if code == 0:
        if worker.stopped:
            return None
        message = "it ended without saying that it finished (os._exit, or killed in teardown)"
        return replace(failure, exit_code=0, message=message)
    return None if worker.stopped else replace(failure, exit_code=code)


class _Clues:
    """What all failures together say about one of them; asked once for each, so nothing here looks
    at all of them again.

    Args:
        failed: the ranks that failed.
        everyone: all ranks.
    """

    def __init__(self, failed: Sequence[Seen], everyone: Sequence[Seen]) -> None:
        self._failed, self._everyone = failed, everyone

    @cached_property
    def _losses_s(self) -> list[float]:
        reports = [worker.report for worker in self._failed if worker.report is not None]
        return sorted(report.time for report in reports if report.kind in OF_HOSTS)

    @cached_property
    def _ends_s(self) -> list[float]:
        ends = [_failed_s(worker) for worker in self._failed]
        ends += [seen.finished_s for seen in self._everyone if seen.finished_s is not None]
        return sorted(ends)

    @cached_property
    def _accusers(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for worker in self._failed:
            for rank in _accused(worker):
                found.setdefault(rank, set()).add(worker.rank)
        return found

    def is_near_a_loss(self, at_s: float) -> bool:
        """Whether a host was lost about then."""
        after = bisect_left(self._losses_s, at_s)
        return any(abs(one - at_s) <= TAKEN_S for one in self._losses_s[max(0, after - 1) :][:2])

    def is_accused(self, rank: int) -> bool:
        """Whether another rank says that it has lost this one."""
        return bool(self._accusers.get(rank, set()) - {rank})

    def follows_an_end(self, at_s: float) -> bool:
        """Whether a rank ended so shortly before that the runtime may have ended the others."""
        before = bisect_left(self._ends_s, at_s)
        return before > 0 and at_s - self._ends_s[before - 1] <= FATE_SHARING_S


def _is_echo(worker: Seen, failure: Failure, clues: _Clues) -> bool:
    """Whether a failure only says that a peer was lost.

    SIGABRT is how JAX's runtime ends a rank whose peer has gone, so it is an echo where another
    rank ended shortly before, unless that one says that it was this rank which it has lost.
    """
    if failure.kind == "exception":
        return is_echo_text(f"{failure.type}: {failure.message}", failure.traceback)
    if failure.kind == "exit":
        # The error is among the last lines; JAX and torch add remarks after it.
        last = worker.tail[-_ERROR_LINES:]
        return any(is_echo_text(line, "\n".join(worker.tail)) for line in last)
    if _is_told_to_end(failure):
        return clues.is_near_a_loss(failure.time)
    if failure.kind != "signal" or failure.signal != SIGABRT:
        return False
    if any(is_echo_text(line) for line in worker.tail[-_ERROR_LINES:]):
        return True
    return not clues.is_accused(worker.rank) and clues.follows_an_end(failure.time)


def _accused(worker: Seen) -> set[int]:
    """The ranks whose end this rank gives as the reason of its own."""
    message = worker.report.message if worker.report is not None else ""
    return {int(rank) for rank in _ACCUSATION.findall(message)}


def _failed_s(worker: Seen) -> float:
    return worker.report.time if worker.report is not None else worker.ended_s or 0.0


def _place_in_time(failure: Failure) -> tuple[float, int]:
    """A sort key: time, where exceptions win over deaths within TIE_S."""
    later_s = TIE_S if failure.kind in ("signal", "oom", *OF_HOSTS) else 0.0
    return failure.time + later_s, failure.rank


def _may_explain_itself(workers: Sequence[Seen], echo: Failure, now_s: float) -> bool:
    """Whether the cause of an echo may still show: a report that is under way.

    Between ranks word of an end travels at once. That of a host comes by way of an agent, or of its
    end: on a machine at its limit later than 0.5 s (an agent of a node was killed; the chaos of
    hosts found its peers blamed).
    """
    some_run = any(worker.exit_code is None for worker in workers)
    limit_s = TAKEN_S if len({worker.host for worker in workers}) > 1 else SETTLE_S
    return some_run and now_s - echo.time < limit_s


def _is_told_to_end(failure: Failure) -> bool:
    return failure.kind == "signal" and failure.signal == SIGTERM


def _may_be_of_a_lost_host(workers: Sequence[Seen], first: Failure, now_s: float) -> bool:
    """Whether a SIGTERM that is not ours may have come because a host is being taken away.

    Slurm sends it to the ranks of all nodes when one of them fails, and then says which.
    """
    has_hosts = len({worker.host for worker in workers}) > 1
    return has_hosts and _is_told_to_end(first) and now_s - first.time < TAKEN_S


def _early_exit(worker: Seen, sentence: str) -> Failure:
    step = worker.beat.step if worker.beat is not None else None
    return Failure(
        worker.rank,
        "early_exit",
        host=worker.host,
        exit_code=int(ExitCode.FAILED),
        message=sentence,
        time=worker.finished_s or 0.0,
        step=step,
        tail=worker.tail,
    )


def _stop(root: Failure, failures: Sequence[Failure]) -> Stop:
    others = [failure for failure in failures if failure.rank != root.rank]
    same = (root.kind, root.type, root.message)
    marked = [
        failure
        if failure.secondary or (failure.kind, failure.type, failure.message) == same
        else replace(failure, secondary=True, reason=f"rank {root.rank} had failed before")
        for failure in sorted(others, key=lambda failure: (failure.time, failure.rank))
    ]
    root = replace(root, secondary=False, reason="")
    return Stop((root, *marked), exit_code_of(root))


def _finish(workers: Sequence[Seen], now_s: float, timeouts: Timeouts) -> Wait | Done:
    """Done where every rank said that it finished; teardowns get until the exit barrier."""
    if any(worker.finished_s is None for worker in workers):
        return Wait()
    slow = tuple(worker.rank for worker in workers if worker.exit_code is None)
    last_s = max((worker.finished_s or 0.0 for worker in workers), default=now_s)
    if slow and now_s - last_s < timeouts.exit_barrier_s:
        return Wait()
    warnings = [
        f"rank {worker.rank} had finished, then {_end_text(worker.exit_code)} in its teardown"
        for worker in workers
        if worker.exit_code not in (None, 0) and not worker.stopped
    ]
    if slow:
        waited = f"{timeouts.exit_barrier_s:g} s"
        warnings.append(f"{ranks_text(slow)} had finished, but not ended {waited} later: killed")
    return Done(tuple(warnings))


def _end_text(code: int | None) -> str:
    if code is not None and code < 0:
        return f"died of {signal_name(-code)}"
    return f"exited with code {code}"

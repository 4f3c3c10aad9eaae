"""Whether a job that failed is started again, and after what pause. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch_xdist.launcher.errors import ExitCode
from torch_xdist.launcher.records import Failure

# Attempts in a row that end no further than the one before.
STUCK_ATTEMPTS = 3
LONGEST_PAUSE_S = 60.0
# What another attempt would only repeat.
HOPELESS_TYPES = ("ImportError", "ModuleNotFoundError", "SyntaxError", "UsageError", "PayloadError")
HOPELESS_CODES = (int(ExitCode.USAGE), int(ExitCode.PREFLIGHT), int(ExitCode.DUPLICATE))


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt that is over: its code, its root cause, how many steps it came to."""

    exit_code: int
    root: Failure | None
    steps: int


@dataclass(frozen=True, slots=True)
class Again:
    """Start again after a pause."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class Enough:
    """End with this code, for this reason ("" where the last failure says it all)."""

    exit_code: int
    why: str = ""


def decide(attempts: Sequence[Attempted], budget: int) -> Again | Enough:
    """What follows the last of `attempts`, with `budget` restarts allowed for failures.

    Preemptions have a budget of their own (`budget` as well) and are never "without progress".
    """
    last = attempts[-1]
    if last.exit_code == 0 or last.root is None or _is_hopeless(last) or budget == 0:
        return Enough(last.exit_code)
    preempted = last.root.kind == "preempted"
    spent = sum((a.root is not None and a.root.kind == "preempted") == preempted for a in attempts)
    if not preempted and _without_progress(attempts) >= STUCK_ATTEMPTS:
        return Enough(
            int(ExitCode.RESTARTS_USED_UP),
            f"{STUCK_ATTEMPTS} attempts ended without progress beyond step {last.steps}",
        )
    if spent > budget:
        code = ExitCode.PREEMPTED if preempted else ExitCode.RESTARTS_USED_UP
        return Enough(int(code), f"the budget of {budget} restarts is used up")
    return Again(min(2.0 ** (spent - 1), LONGEST_PAUSE_S))


def _is_hopeless(attempt: Attempted) -> bool:
    root = attempt.root
    return (
        attempt.exit_code in HOPELESS_CODES
        or root is None
        or root.kind in ("pickle", "launch")
        or root.type in HOPELESS_TYPES
    )


def _without_progress(attempts: Sequence[Attempted]) -> int:
    """How many of the last attempts came no further than the best before them."""
    best, stuck = 0, 0
    for attempt in attempts:
        if attempt.steps > best:
            best, stuck = attempt.steps, 1
        else:
            stuck += 1
    return stuck

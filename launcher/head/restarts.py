"""Whether a job that failed is started again, and after what pause. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.records import Failure

# Attempts in a row that end no further than the one before.
STUCK_ATTEMPTS = 3
LONGEST_PAUSE_S = 60.0
# What another attempt would only repeat.
HOPELESS_TYPES = ("ImportError", "ModuleNotFoundError", "SyntaxError", "UsageError", "PayloadError")
HOPELESS_CODES = (int(ExitCode.USAGE), int(ExitCode.PREFLIGHT), int(ExitCode.DUPLICATE))


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt that is over: its code, its root cause, and the step that it came to.

    `resumed` is the step of the checkpoint that it went on from (0: it found none), and `step`
    counts on from there. Where nothing is known of checkpoints it is None, and `step` counts from
    the start of the attempt.
    """

    exit_code: int
    root: Failure | None
    step: int
    resumed: int | None = None


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
    """What follows the last of `attempts`, with `budget` restarts allowed."""
    last = attempts[-1]
    if last.exit_code == 0 or last.root is None or _is_hopeless(last) or budget == 0:
        return Enough(last.exit_code)
    if _without_progress(attempts) >= STUCK_ATTEMPTS:
        return Enough(
            int(ExitCode.RESTARTS_USED_UP),
            f"{STUCK_ATTEMPTS} attempts ended without progress beyond step {last.step}",
        )
    if len(attempts) > budget:
        code = int(ExitCode.RESTARTS_USED_UP)
        return Enough(code, f"the budget of {budget} restarts is used up")
    return Again(min(2.0 ** (len(attempts) - 1), LONGEST_PAUSE_S))


def _is_hopeless(attempt: Attempted) -> bool:
    root = attempt.root
    return (
        attempt.exit_code in HOPELESS_CODES
        or root is None
        or root.kind in ("pickle", "launch")
        or root.type in HOPELESS_TYPES
    )


def _resumed_later(one: Attempted, other: Attempted) -> bool:
    if one.resumed is None or other.resumed is None:
        return False
    return other.resumed > one.resumed


def _without_progress(attempts: Sequence[Attempted]) -> int:
    """How many of the last attempts came no further than those before them.

    Steps of an attempt that resumed at an unknown step cannot be compared with those of others:
    such an attempt is stuck only where it made none, or as many as the one before it. Those of
    others can only where the script counts its steps as the device does (it may save by epoch, or
    sync more than once a step); that an attempt goes on from a later checkpoint than the one before
    shows in any case that the latter had moved.
    """
    best, before, stuck = 0, None, 0
    for number, attempt in enumerate(attempts):
        if number and _resumed_later(attempts[number - 1], attempt):
            stuck = 1
        if attempt.resumed is None:
            moved = attempt.step > 0 and attempt.step != before
        else:
            moved = attempt.step > best
        stuck = 1 if moved else stuck + 1
        best, before = max(best, attempt.step), attempt.step
    return stuck

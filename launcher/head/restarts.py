"""Whether a job that failed is started again, and after what pause. Pure."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

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

    Where a host was lost, or a rank was told to end by SIGTERM that is not ours, or ended with the
    code for it, something was taken away from the job: a preemption, and no failure of its own.

    `resumed` is the step of the checkpoint that it went on from (0: it found none), and `step`
    counts on from there. Where nothing is known of checkpoints it is None, and `step` counts from
    the start of the attempt.
    """

    exit_code: int
    root: Failure | None
    step: int
    resumed: int | None = None

    @property
    def was_preempted(self) -> bool:
        if self.root is None:
            return False
        was_told = self.root.kind == "signal" and self.root.signal == signal.SIGTERM
        is_lost = self.root.kind == "host_lost"
        return is_lost or was_told or self.exit_code == ExitCode.PREEMPTED


@dataclass(frozen=True, slots=True)
class Again:
    """Start again after a pause; `told` says so."""

    pause_s: float
    told: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Enough:
    """End with this code, for this reason ("" where the last failure says it all)."""

    exit_code: int
    why: str = ""


def decide(
    attempts: Sequence[Attempted],
    budget: int,
    preemptions: int | None = None,
    fence_s: float = 0.0,
) -> Again | Enough:
    """What follows the last of `attempts`.

    Args:
        budget: how many restarts are allowed after failures.
        preemptions: and after preemptions; None: these count as failures.
        fence_s: until the agent of a host that was lost, which hears nothing any more either, has
            ended its ranks; the next attempt does not begin before.
    """
    last, used, of_what = attempts[-1], len(attempts), "restarts"
    if preemptions is not None:
        used = sum(one.was_preempted == last.was_preempted for one in attempts)
        if last.was_preempted:
            budget, of_what = preemptions, "restarts after preemptions and lost hosts"
    if last.exit_code == 0 or last.root is None or _is_hopeless(last) or budget == 0:
        return Enough(last.exit_code)
    if _without_progress(attempts, are_apart=preemptions is not None) >= STUCK_ATTEMPTS:
        return Enough(
            int(ExitCode.RESTARTS_USED_UP),
            f"{STUCK_ATTEMPTS} attempts ended without progress beyond step {last.step}",
        )
    if used > budget:
        code = int(ExitCode.RESTARTS_USED_UP)
        return Enough(code, f"the budget of {budget} {of_what} is used up")
    pause_s = max(min(2.0 ** (used - 1), LONGEST_PAUSE_S), float(math.ceil(fence_s)))
    kind = of_what.removeprefix("restarts")
    return Again(pause_s, f"restart {used} of {budget}{kind} in {pause_s:g} s")


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


def _without_progress(attempts: Sequence[Attempted], *, are_apart: bool) -> int:
    """How many of the last attempts came no further than those before them.

    Preemptions that have a budget of their own are no sign that the job is stuck.

    Steps of an attempt that resumed at an unknown step cannot be compared with those of others:
    such an attempt is stuck only where it made none, or as many as the one before it. Those of
    others can only where the script counts its steps as the device does (it may save by epoch, or
    sync more than once a step); that an attempt goes on from a later checkpoint than the one before
    shows in any case that the latter had moved.
    """
    best, before, stuck = 0, None, 0
    for number, attempt in enumerate(attempts):
        ended = 0 if are_apart and attempt.was_preempted else 1
        if number and _resumed_later(attempts[number - 1], attempt):
            stuck = min(stuck, 1)
        if attempt.resumed is None:
            moved = attempt.step > 0 and attempt.step != before
        else:
            moved = attempt.step > best
        stuck = ended if moved else stuck + ended
        best, before = max(best, attempt.step), attempt.step
    return stuck

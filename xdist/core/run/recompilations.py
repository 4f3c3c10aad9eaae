"""Why a program was compiled again: one line for each cause.

A program belongs to the place that ran it: the reason and the user's line of its cut. The first two
runs of a place may compile, for its first step has the optimizer's state to make. A later one that
does is compared with what the place ran before, and the nearest of these tells what differs. Where
in the user's code that is, tells a tape that was recorded with lines: one of those after each
compilation, so that all others cost nothing.
"""

import sys
import threading
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from torch_xdist import metrics, settings, world
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.run import cuts
from torch_xdist.core.run.cuts import Cut
from torch_xdist.core.run.program_difference import REMEDIES, Difference, Known, difference, nearest
from torch_xdist.core.trace import row_lines
from torch_xdist.core.trace.trace import Entry, Tape
from torch_xdist.progress import PROGRESS

# Runs of a place that may compile without a word, and steps before the first word.
_WARM_UP_RUNS = 2
_WARM_UP_STEPS = 2
# How many programs of a place are compared, and of how many places.
_COMPARED = 8
_PLACES = 256
# How many tapes are recorded with lines after a compilation.
_LINED = 2


@dataclass(slots=True)
class _Place:
    """What one line of the user's ran.

    Attributes:
        lines: of the rows of a program, by its entries.
        asked: how many tapes may still be recorded with lines.
        times, spent_s: of each cause, and how long its compilations took.
    """

    runs: int = 0
    known: deque[Known] = field(default_factory=lambda: deque(maxlen=_COMPARED))
    lines: dict[tuple[Entry, ...], dict[int, str]] = field(default_factory=dict)
    asked: int = _LINED
    times: Counter[tuple[str, str]] = field(default_factory=Counter)
    spent_s: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))


_places: OrderedDict[tuple[Any, ...], _Place] = OrderedDict()
_lock = threading.Lock()


def after_run(launch: Launch, tape: Tape, next_tape: Tape, cut: Cut, compile_s: float) -> None:
    """A tape ran; say why it was compiled, where its place had run before.

    Args:
        next_tape: into which this thread records now.
        compile_s: how long its compilation took, in seconds, where there was one.
    """
    if cut.reason == cuts.EAGER or not settings.current().explain_recompiles:
        return
    place = _place(launch, cut)
    place.runs += 1
    # Slices that became inputs made one program of many; that one needs no word. And the first
    # programs of a place may be known from another.
    if launch.tape is tape and (cut.compiled or place.runs <= _WARM_UP_RUNS):
        _compare(place, launch, cut, compile_s)
    lines = row_lines.lines_of(tape.entries)
    if lines is not None:
        _keep_lines(place, launch.entries, lines)
    if place.asked and place.runs >= _WARM_UP_RUNS and next_tape is not tape:
        place.asked -= 1
        row_lines.begin(next_tape)


def clear() -> None:
    """Forget what ran; for tests."""
    _places.clear()


def _place(launch: Launch, cut: Cut) -> _Place:
    key = launch.device.index, cut.reason, cut.where
    found = _places.get(key)
    if found is None:
        with _lock:
            found = _places.setdefault(key, _Place())
            if len(_places) > _PLACES:
                _places.popitem(last=False)
    return found


def _compare(place: _Place, launch: Launch, cut: Cut, compile_s: float) -> None:
    new = Known(*launch.key())
    known = [*place.known]
    if new not in known:
        place.known.append(new)
        place.asked = _LINED
    for entries in [e for e in place.lines if all(e is not k.entries for k in place.known)]:
        del place.lines[entries]
    if cut.compiled and known and place.runs > _WARM_UP_RUNS and _steps_here() >= _WARM_UP_STEPS:
        try:
            old = nearest(known, new)
            _tell(place, difference(old, new), place.lines.get(old.entries, {}), cut, compile_s)
        except Exception as error:
            # The step has run; what cannot be told must not end the training.
            metrics.count("CompiledAgain.unexplained")
            warnings.warn(
                f"torch_xdist: {cut.where}: compiled again; why, is not known ({error!r})",
                stacklevel=2,
            )


def _steps_here() -> int:
    """How many steps this process ended."""
    return PROGRESS.step - (PROGRESS.resumed or 0)


def _keep_lines(place: _Place, entries: tuple[Entry, ...], lines: dict[int, str]) -> None:
    known = next((k.entries for k in place.known if k.entries == entries), None)
    if known is not None:
        place.lines[known] = lines
        # Another program of the place may have none yet; its turn comes when it is compiled.
        place.asked = 0


def _tell(
    place: _Place, found: Difference, lines: dict[int, str], cut: Cut, compile_s: float
) -> None:
    """Say it the first time, and then when a cause has come ten times, a hundred times, ..."""
    cause = found.kind, found.name
    place.times[cause] += 1
    place.spent_s[cause] += compile_s
    metrics.count(f"CompiledAgain.{found.kind}")
    times = place.times[cause]
    if world.current().local_rank or not _is_told(times):
        return
    spent, remedy = f"{compile_s:.1f} s", found.remedy
    if times > 1:
        # What is particular to one time is none for the tenth.
        remedy = REMEDIES[found.kind]
        spent = f"for the {times}th time for this reason, {place.spent_s[cause]:.1f} s in all"
    at = _line(found, lines)
    print(
        f"torch_xdist: {cut.where}: after step {PROGRESS.step} a program ({cut.rows} operators) was"
        f" compiled again, {spent}: {found.what}{at}; {remedy}",
        file=sys.stderr,
        flush=True,
    )


def _is_told(times: int) -> bool:
    """1, 10, 100, ..."""
    return str(times).strip("0") == "1"


def _line(found: Difference, lines: dict[int, str]) -> str:
    """Where it shows, as far as that is known: a leaf where it is first read."""
    if found.slot is None:
        return ""
    after = [slot for slot in lines if slot >= found.slot]
    return f", at {lines[min(after)]}" if after else ""

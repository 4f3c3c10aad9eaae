"""A step that is cut in its middle, because Python reads a value there: one line for each place.

Python waits at such a place until the device has computed all so far, and the device then waits
until Python has recorded the rest. A read after which the step records nothing more is none.
"""

import sys
import threading
import time
from dataclasses import dataclass, field

from torch_xdist import metrics, settings, world
from torch_xdist.core.run import cuts
from torch_xdist.core.run.cuts import Cut
from torch_xdist.progress import PROGRESS

# Steps that a place has cut, without compiling, before it is told.
_STEPS = 3
_PLACES = 256


@dataclass(slots=True)
class _Place:
    """What a line of the user's has cost: in how many steps, and how long in all."""

    steps: int = 0
    spent_s: float = 0.0
    last_step: int = -1
    is_told: bool = False


@dataclass(slots=True)
class _Reads(threading.local):
    """The reads of this thread's step: (line, seconds), and the one that goes on."""

    step: int = -1
    done: list[tuple[str, float]] = field(default_factory=list)
    open: tuple[str, float] | None = None


_reads = _Reads()
_places: dict[str, _Place] = {}


def after_run(cut: Cut, began_s: float) -> None:
    """A cut ran that began then; what this step has read before it was read in its middle."""
    if cut.reason not in (cuts.READ, cuts.SYNC):
        return
    if _reads.step != PROGRESS.step:
        _reads.step = PROGRESS.step
        _reads.done.clear()
    elif cut.rows:
        for where, seconds in _reads.done:
            _add(where, seconds)
        _reads.done.clear()
    # The seconds of a compilation are told elsewhere.
    is_read = cut.reason == cuts.READ and not cut.compiled
    _reads.open = (cut.where, began_s) if is_read else None


def after_read() -> None:
    """The value for which this thread cut is on the host, if it had cut for one."""
    if _reads.open is not None:
        where, began_s = _reads.open
        _reads.open = None
        _reads.done.append((where, time.perf_counter() - began_s))


def clear() -> None:
    """Forget what was read; for tests."""
    _places.clear()


def _add(where: str, seconds: float) -> None:
    if len(_places) >= _PLACES and where not in _places:
        return
    place = _places.setdefault(where, _Place())
    if place.is_told:
        return
    if place.last_step != PROGRESS.step:
        if place.steps == _STEPS:
            _tell(where, place)
            return
        place.steps += 1
        place.last_step = PROGRESS.step
    place.spent_s += seconds


def _tell(where: str, place: _Place) -> None:
    place.is_told = True
    metrics.count("CutInStep")
    if world.current().local_rank or not settings.current().explain_recompiles:
        return
    print(
        f"torch_xdist: {where}: after step {PROGRESS.step} the value of a tensor is read in the"
        f" middle of each step (item, print, `if tensor:`), {1e3 * place.spent_s / _STEPS:.1f} ms"
        " per step: Python waits for the device there, and the device for Python; compute with"
        " tensors, torch.where instead of `if`, and read values after the step or in"
        " xm.add_step_closure",
        file=sys.stderr,
        flush=True,
    )

"""One tape on its way through XLA: compiled if that is needed, run, its results handed out."""

import contextlib
import operator
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from torch_xdist import metrics
from torch_xdist.core.kept.known_plans import KNOWN
from torch_xdist.core.programs import program
from torch_xdist.core.programs.launch import Launch, prepare
from torch_xdist.core.programs.program_cache import Program
from torch_xdist.core.run import analysis, cuts, mid_step_cuts, recompilations, reports
from torch_xdist.core.run.cuts import Cut
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.tapes import fills, moving_slices, own_arrays, passing
from torch_xdist.core.tapes.changing_rows import in_parts
from torch_xdist.core.trace import donation
from torch_xdist.core.trace.plans import PLANS
from torch_xdist.core.trace.trace import Tape
from torch_xdist.core.trace.values import Value

# What the metrics of eager mode begin with.
_EAGER_OP = "EagerOp"
_slot_of = operator.attrgetter("slot")


class TapeRun:
    """One tape on its way through XLA.

    Attributes:
        trace: the DeviceTrace it was recorded on.
        live: the values that get a buffer.
        is_compiling: whether its program is being made.
        is_entered: whether XLA began to run it.
        is_done: whether the live values have their buffers.
        cut, program: its record and its program, once it is compiled.
    """

    def __init__(self, trace: Any, tape: Tape, live: Sequence[Value]) -> None:
        self.trace = trace
        self.tape = tape
        self.live = live
        self.is_compiling = False
        self.is_entered = False
        self.is_done = False
        self.cut: Cut | None = None
        self.program: Program | None = None

    def results(self, slots: Sequence[int], reason: str, cause: str) -> list[jax.Array]:
        """The buffers of these slots; the living values get theirs."""
        tape = self.tape
        found: dict[int, Any] = dict.fromkeys([*map(_slot_of, self.live), *slots])
        # The order of the values is that of their first writes, which a first step has for itself.
        outs = sorted(found)
        if not tape.buffers.keys().isdisjoint(found):
            # What is a leaf already stays as it is: the program neither returns nor donates it.
            outs = [slot for slot in outs if slot not in tape.buffers]
            found.update((slot, tape.buffers[slot]) for slot in tape.buffers.keys() & found)
        if not outs and not tape.collectives:
            self._hand_over(found)
            return [found[slot] for slot in slots]
        trace = self.trace
        reports.before_run(tape, trace.device, outs)
        tilings = self._tilings() if trace.device.layout is not None else {}
        started = time.perf_counter()
        launch = prepare(tape, trace.device, outs, may_donate=True, tilings=tilings)
        unwrapped_s = time.perf_counter() - started
        self.is_compiling = True
        # In eager mode the metrics count operators apart, so that programs stand out.
        kind = _EAGER_OP if reason == cuts.EAGER else ""
        asked_s = time.perf_counter()
        # Who looks on wants to see a program.
        others = (in_parts, passing.computed) if trace.observer is None else ()
        launch, compiled, is_new = program.find(launch, kind, _instead, *others)
        compile_s = time.perf_counter() - asked_s
        self.program = compiled
        self.is_compiling = False
        if trace.observer is not None:
            trace.observer(self, launch)
        self.cut = cuts.note(reason, compiled.rows, is_new, compiled.fingerprint)
        if reason != cuts.OTHER_THREAD:
            trace.last_cut = self.cut
            trace.cut_count += 1
        cuts.note_collectives(tape, compiled.collectives)
        analysis.of_run(launch, reason, cause, compiled, is_new)
        results: list[list[jax.Array]] = []
        names = launch.named(outs)
        self.is_entered = True
        try:
            program.execute(compiled, launch, results, kind)
        finally:
            # Also where Ctrl-C came in between: the operands are gone.
            started = time.perf_counter()
            if results:
                found.update(zip(names, results[0]))
                found.pop(-1, None)
                self._hand_over(found)
        metrics.note(
            (),
            ("TensorsGraphSize", compiled.rows + len(launch.leaves), 1),
            ("UnwrapXlaData", unwrapped_s, 1),
            ("WrapXlaData", time.perf_counter() - started, 1),
        )
        reports.after_run(tape, trace.device, outs, results[0])
        recompilations.after_run(launch, tape, trace.tape, self.cut, compile_s)
        mid_step_cuts.after_run(self.cut, asked_s)
        if is_new:
            PLANS.sweep()
            KNOWN.write()
            # XLA makes parts of a program while it first runs, and a process that ends meanwhile
            # dies of it.
            if trace.device.choices.is_host and not compiled.collectives:
                _wait_for(results[0])
        elif not compiled.is_kept:
            PLANS.sweep()
        return [found[slot] for slot in slots]

    def _tilings(self) -> dict[int, Tiling]:
        """How the living values' results shall lie, by slot, where the user said it."""
        said = [(value.slot, getattr(value, "tiling", None)) for value in self.live]
        return {slot: tiling for slot, tiling in said if tiling is not None}

    def _hand_over(self, found: dict[int, Any]) -> None:
        epoch = self.tape.epoch
        if len(found) < len(self.live):
            _share(found, self.live)
        for value in self.live:
            buffer = found[value.slot]
            # One that another thread wrote meanwhile is of another epoch.
            if value.epoch == epoch:
                value.buffer = buffer
        self.is_done = True


def _share(found: Mapping[int, Any], live: Sequence[Value]) -> None:
    """Note the buffers that several values get."""
    times = Counter(map(_slot_of, live))
    for slot, count in times.items():
        if count > 1:
            donation.share(found[slot])


def _instead(launch: Launch) -> tuple[Launch, bool] | None:
    """What to launch instead of what would have to be compiled, and whether it is so each time."""
    own = own_arrays.as_own(launch)
    less = fills.without_unused(own or launch)
    if own is not None:
        return (own if less is None else less[0]), False
    if less is not None:
        return less
    moved = moving_slices.as_inputs(launch)
    return None if moved is None else (moved, False)


def _wait_for(results: Sequence[jax.Array]) -> None:
    """Until a program's first run is over; what failed in it is raised where it is read.

    One with collectives is not waited for: its other ranks may need this one to go on.
    """
    for array in results:
        with contextlib.suppress(RuntimeError, ValueError):
            array.block_until_ready()

"""Programs: a tape compiled by XLA, cached by what it was made of.

A cut prepares a launch, asks `find` for its program (which compiles where none is cached) and
`execute` for the results. Until `execute` nothing has happened that could not be done again.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from torch_xdist import metrics, platforms, settings
from torch_xdist.core.early import announcement, choice
from torch_xdist.core.kept import program_key
from torch_xdist.core.programs import collective_program, heap, memory_bounds
from torch_xdist.core.programs.compile_notice import told_if_long, without_warning_of_donations
from torch_xdist.core.programs.hlo_text import hlo_text
from torch_xdist.core.programs.interpreter import ScalarFeed, interpret, scalars_of, seeds_of
from torch_xdist.core.programs.jax_internals import (
    Location,
    checks_results,
    forget_types,
    in_one_call,
    in_profile,
)  # fmt: skip
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.programs.locations import locations_of, no_scope, row_scope
from torch_xdist.core.programs.manual_region import interpret_regions, manual_slots
from torch_xdist.core.programs.program_cache import Key, Program, ProgramCache, warn_full
from torch_xdist.core.programs.sharded_program import MARK, OnLayout
from torch_xdist.core.rows import aliases, better_rows, refused_dtypes
from torch_xdist.core.rows.program_words import call, digest, fingerprint, over_layout
from torch_xdist.core.trace import donation, global_state, op_counts
from torch_xdist.core.trace.plans import PLANS
from torch_xdist.core.trace.trace import rows_of, types_of
from torch_xdist.progress import PROGRESS

PROGRAMS = ProgramCache()


# Tells what to launch instead of what is not compiled yet, and whether that is so each time it
# comes again; None: that itself.
Instead = Callable[[Launch], tuple[Launch, bool] | None]
# Makes a program of several others, and tells whether one of them was compiled; None: of its own.
Apart = Callable[[Launch], tuple[Program, bool] | None]


def find(
    asked: Launch,
    kind: str = "",
    instead: Instead | None = None,
    apart: Apart | None = None,
    once: Callable[[Launch, Key], Program | None] | None = None,
) -> tuple[Launch, Program, bool]:
    """A launch, its program, and whether that was compiled just now.

    Args:
        kind: what the metrics call it before "CompileTime".
        once: gives one that has its results already and is not kept, told the key of a new one.
    """
    launch, keys, program = _sought(asked, instead)
    if program is not None:
        metrics.count("CachedCompile")
        return launch.giving(program.mask), program, False
    is_here = _build_elsewhere is None
    if once is not None and is_here and (passing := once(asked, keys[-1])) is not None:
        metrics.observe(f"{kind}ExecuteTime", passing.took_s)
        metrics.note(_run_tally(asked, 0))
        return asked, passing, False
    if apart is not None and is_here and (parted := apart(launch)) is not None:
        _keep(keys, parted[0])
        return launch, *parted
    metrics.count("UncachedCompile")
    if settings.asks_for_stablehlo():
        # It always is what XLA is given here; torch_xla counts where it is asked for.
        metrics.count("StableHloCompile")
    if launch.placement is not None and settings.auto_spmd() is not None:
        metrics.count("CompileWithAutoSharding")
    metrics.count("CreateCompileHandles")
    program = make(launch, announces=is_here)
    PROGRESS.compiling = True
    started = time.perf_counter()
    try:
        with (
            in_profile("PjRtComputationClient::Compile"),
            told_if_long(program.rows),
            heap.without_holes(program.rows),
        ):
            without_warning_of_donations()
            if _build_elsewhere is None:
                program.run = program.executable.compile(*_how(launch, program))
            else:
                program.run = _build_elsewhere(program, launch)
    except Exception as error:
        _tell_failure(launch, error)
        memory_bounds.raise_if_exhausted(error, launch.device.jax)
        raise
    finally:
        PROGRESS.compiling = False
    program.took_s = time.perf_counter() - started
    metrics.observe(f"{kind}CompileTime", program.took_s)
    if _build_elsewhere is None:
        memory_bounds.check(program, launch.device.jax)
    metrics.observe("InputOutputAliasCount", sum(launch.mask))
    _keep(keys, program)
    return launch, program, True


def _keep(keys: Sequence[Any], program: Program) -> None:
    """Have the program of a launch, whose key is the last, and let it serve for the others."""
    dropped, full = PROGRAMS.put(keys[-1], program)
    PLANS.hold(program.plans)
    for other in dropped:
        PLANS.release(other.plans)
    if dropped:
        forget_types()
    if full:
        warn_full(full)
    _serve(keys)


def _sought(launch: Launch, instead: Instead | None) -> tuple[Launch, list[Any], Program | None]:
    """What to launch, its keys, and its program, where there is one.

    The last key is its own; its program serves for the others too.
    """
    keys: list[Any] = []
    # Who tells no other launch takes the results of this one alone.
    may_fewer, may_more = True, instead is not None
    while True:
        keys.append(launch.key())
        program = PROGRAMS.get(keys[-1])
        if program is not None:
            _serve(keys)
            return launch, keys, program
        other = instead(launch) if instead is not None else None
        if other is None and may_fewer:
            other, instead, may_fewer = _with_fewer(launch, keys[-1]), None, False
        if other is None and may_more:
            other, may_more = _with_more(launch, keys[-1]), False
        if other is None:
            return launch, keys, None
        launch, always = other
        if not always:
            keys, instead = [], None


def _serve(keys: Sequence[Any]) -> None:
    """Let the program of the last key serve for the others."""
    for key in keys[:-1]:
        PROGRAMS.put_also(key, keys[-1])


def _with_fewer(launch: Launch, key: Any) -> tuple[Launch, bool] | None:
    """The launch that gives fewer buffers away, and whether the others have no use.

    A program that is given fewer serves as well, but takes memory for what it could write over
    them; where that is wanted once, it is not worth a compilation. None for all of them.
    """
    given = launch.donated
    # What the user gave away goes, of use or not.
    if not given or any(map(donation.is_given, given)):
        return None
    leaves, results = launch.types()
    alike = [mask for mask, outs in PROGRAMS.alike(key) if outs == launch.outs]
    known = [mask for mask in alike if aliases.is_within(mask, launch.mask)]
    for mask in known:
        if aliases.is_enough(mask, launch.mask, leaves, results):
            return launch.giving(mask), True
    if known and not PROGRAMS.missed_again(key):
        return launch.giving(max(known, key=sum)), False
    fewer = aliases.of_use(launch.mask, leaves, results)
    return (launch.giving(fewer), True) if fewer != launch.mask else None


def _with_more(launch: Launch, key: Any) -> tuple[Launch, bool] | None:
    """The launch with results that nobody asked for, as a program is known that has them.

    The last step of a loop, whose loss is gone when it is over, is not worth a compilation, if it
    does not come again soon. None where there is no such program.
    """
    if launch.placement is not None or any(map(donation.is_given, launch.donated)):
        return None
    asked = {*launch.outs}
    more = [
        (mask, outs)
        for mask, outs in PROGRAMS.alike(key)
        if asked < {*outs} and aliases.is_within(mask, launch.mask)
    ]
    if not more or PROGRAMS.missed_again(key):
        return None
    mask, outs = min(more, key=lambda known: (len(known[1]), -sum(known[0])))
    return launch.returning(outs).giving(mask), False


def _how(launch: Launch, program: Program) -> tuple[Any, str]:
    """What a program is compiled for, and under what earlier runs may have kept it."""
    given = signature(launch, program)
    if launch.placement is not None:
        return given, ""
    call = launch.leaves, launch.mask, launch.outs, program.early is not None
    return given, program_key.of(launch.tape, launch.device, call, given)


# What makes `Program.run` where programs are compiled for elsewhere.
_build_elsewhere: Callable[[Program, Launch], Any] | None = None


def build_with(build: Callable[[Program, Launch], Any]) -> None:
    """From now on `build` returns what runs a program: one that is compiled for elsewhere."""
    global _build_elsewhere
    _build_elsewhere = build


def make(launch: Launch, *, announces: bool = False) -> Program:
    """The program of a launch, not compiled yet.

    Args:
        announces: whether it may tell the host of results while it runs.
    """
    entries = launch.entries
    refused_dtypes.check(entries, platforms.of(launch.device.jax.platform))
    given = [*itertools.compress(launch.leaves, launch.mask)]
    held = [slot for slot, give in zip(launch.leaves, launch.mask) if not give]
    outs = launch.outs

    manual = _manual_slots(launch)
    constrain = _constraints(launch)
    layout = launch.device.layout
    locations = locations_of(launch.tape.entries)
    scope = row_scope if locations else no_scope
    seeds = seeds_of(entries)
    computed, to_settle, fed_apart = better_rows.of_program(
        entries, launch.device.choices, is_sharded=launch.placement is not None
    )

    announces &= launch.placement is None and not collective_program.is_on_mesh(launch.device.peers)
    early = choice.early_results(launch.device, entries, launch.mask, outs) if announces else None

    # It lives as long as the program, so it must hold nothing of the launch, whose tape has values.
    def step(donated: Any, kept: Any, floats: Any, ints: Any) -> list[Any]:
        env = dict(zip(given, donated))
        env.update(zip(held, kept))
        feed = ScalarFeed(floats, ints, seeds, fed_apart)
        after = {early.seed: partial(early.announce, env, floats[-1])} if early else {}
        if manual:
            interpret_regions(computed, env, feed, layout, manual, scope)
        else:
            interpret(computed, env, feed, scope, to_settle=to_settle, is_traced=True, after=after)
        last = [env[early.seed]] if early else []
        return [*(constrain(env[slot], slot) for slot in outs), *last]

    rows = rows_of(entries)
    places = launch.tape.collectives
    calls = [(call(row[0]), places.get(slot, "")) for slot, row in rows if row[0].is_collective]
    floats, ints = scalars_of(launch.tape, entries)
    return Program(
        executable=_executable(launch, step, calls, manual, locations),
        outs=outs,
        mask=launch.mask,
        fingerprint=fingerprint(entries),
        collectives=digest(call for call, _ in calls) if calls else "",
        rows=len(rows),
        plans=frozenset(row[0] for _, row in rows),
        scalars=(len(floats), len(ints)),
        tally=op_counts.tally_of(row for _, row in rows),
        run_tally=_run_tally(launch, len(floats) + len(ints)),
        early=early,
    )


def _run_tally(launch: Launch, scalars: int) -> metrics.Tally:
    """What one run of a program counts: its results, and the numbers it is fed with."""
    kind = "ExecuteComputation" if launch.placement is None else "ExecuteReplicated"
    counts = (kind, 1), ("CreateDataHandles", len(launch.outs)), ("DeviceDataCacheMiss", scalars)
    return tuple(pair for pair in counts if pair[1])


def _constraints(launch: Launch) -> Callable[[Any, int], Any]:
    """What tells XLA how a result shall lie, before it is padded; a mark has told it already."""
    if launch.placement is None:
        return lambda x, slot: x
    entries, layout = launch.entries, launch.device.layout
    wanted = dict(zip(launch.outs, launch.placement.results))

    def constrain(x: Any, slot: int) -> Any:
        tiling, row = wanted[slot], entries[slot]
        is_marked = isinstance(row, tuple) and row[0].name == MARK
        if tiling is None or is_marked:
            return x
        return jax.lax.with_sharding_constraint(x, layout.sharding(tiling))

    return constrain


def _manual_slots(launch: Launch) -> set[int]:
    """The slots that are sharded by hand, on the logical device."""
    if launch.placement is None:
        return set()
    leaves = zip(launch.leaves, launch.placement.leaves)
    return manual_slots(launch.entries, [slot for slot, (*_, is_parts) in leaves if is_parts])


def _executable(
    launch: Launch,
    step: Any,
    calls: Sequence[Any],
    manual: set[int],
    locations: Mapping[int, Location],
) -> Any:
    """How `step` is compiled and run, which holds these collectives."""
    if launch.placement is None:
        given = [*itertools.compress(launch.leaves, launch.mask)]
        over = aliases.pairs(launch.entries, given, launch.outs)
        return collective_program.executable(
            step, calls, launch.device.jax, locations, launch.device.peers, over
        )
    mask = [*enumerate(launch.mask)]
    types = types_of(launch.entries)
    of_leaves, of_outs = (
        [(launch.device.layout.count,) * (slot in manual) + types[slot].shape for slot in slots]
        for slots in (launch.leaves, launch.outs)
    )
    return OnLayout(
        step,
        launch.device.layout,
        launch.placement,
        [place for place, give in mask if give],
        [place for place, give in mask if not give],
        (of_leaves, of_outs),
        locations,
        [place for place, slot in enumerate(launch.outs) if slot in manual],
        over_layout(launch.entries, launch.leaves, launch.placement.leaves, launch.device.layout),
    )


def lowered(launch: Launch) -> Any:
    """The program of a launch as JAX lowers it; nothing is compiled or kept."""
    global_state.follow_torch(launch.device.choices)
    program = make(launch)
    return program.executable.lower(signature(launch, program))


def signature(launch: Launch, program: Program) -> tuple[Any, ...]:
    """The types of what a program is called with: donated, kept, floats, ints."""
    floats, ints = program.scalars
    floats += program.early is not None  # its ticket
    arguments = launch.donated, launch.kept, np.empty(floats), np.empty(ints, np.int64)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)


def _tell_failure(launch: Launch, error: Exception) -> None:
    """A program could not be compiled or run: show its HLO where a variable asks for it.

    XLA_SAVE_HLO_FILE gets it; with XLA_DUMP_HLO_GRAPH the error holds it.
    """
    now = settings.current()
    if now.hlo_file is None and not now.hlo_in_errors:
        return
    try:
        text = hlo_text(lowered(launch), in_tuple=True)
    except Exception as reason:
        text = f"no HLO: it cannot be lowered ({type(reason).__name__}: {reason})"
    if now.hlo_file is not None:
        with open(now.hlo_file, "a") as file:
            file.write(f"[HLO Graph 0 From Thread {threading.get_ident()}]\n{text}\n")
    if now.hlo_in_errors:
        error.add_note(f">>> Dumping Computation 0\n{text}")


def scalar_arrays(launch: Launch, program: Program) -> tuple[np.ndarray, np.ndarray]:
    """What the rows are fed with, as the program takes it."""
    scalars = launch.tape.scalars
    numbers = itertools.chain.from_iterable(map(scalars.__getitem__, sorted(scalars)))
    floats, ints = [*numbers], []
    if program.scalars[1]:
        ints = [number for number in floats if number.__class__ is not float]
        floats = [number for number in floats if number.__class__ is float]
    if (len(floats), len(ints)) != program.scalars:
        floats, ints = scalars_of(launch.tape, launch.entries)  # type: ignore[assignment]
    return np.asarray(floats, np.float64), np.asarray(ints, np.int64)


def execute(
    program: Program, launch: Launch, results: list[list[jax.Array]], kind: str = ""
) -> None:
    """Run the program of a launch; its results are then the one element of `results`."""
    name = f"{kind}ExecuteTime" if launch.placement is None else "ExecuteReplicatedTime"
    arguments = launch.donated, launch.kept, *scalar_arrays(launch, program)
    try:
        if program.runs_others:
            program.run(results, arguments)
        else:
            run(program, arguments, results, name)
    except Exception as error:
        _tell_failure(launch, error)
        memory_bounds.raise_if_exhausted(error, launch.device.jax)
        raise


def run(
    program: Program, arguments: Sequence[Any], results: list[list[jax.Array]], name: str
) -> None:
    """Run a program; its results are then the one element of `results`.

    The call returns before the device is done. The donated buffers are gone as soon as it began,
    so it hands the results over without coming back to Python, where Ctrl-C could drop them.

    Args:
        arguments: what `Program.run` takes.
        name: of the metric that the run is a sample of.
    """
    if program.asks_bytes:
        memory_bounds.make_room(program)
    metrics.look()
    early = program.early
    if early is not None:
        arguments, announced = announcement.stamped(arguments)
    started = time.perf_counter()
    direct = getattr(program.executable, "direct", None)
    with in_profile("PjRtComputationClient::ExecuteComputation"):
        if direct is None or checks_results():
            in_one_call(results, program.run, *arguments)
        else:
            direct.run(arguments, results)
    if early is not None:
        announcement.launched(early, announced, results[0])
    metrics.note(program.run_tally)
    metrics.launched(name, started, results[0][0] if results[0] else None)

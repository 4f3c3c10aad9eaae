"""Programs: a trace compiled by XLA, cached by the rows it was made of."""

import hashlib
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from torch_xdist import metrics
from torch_xdist.core import collective_program, device
from torch_xdist.core.plan import Plan, number_types
from torch_xdist.core.program_cache import Program, ProgramCache
from torch_xdist.core.trace import Cell, Trace
from torch_xdist.core.walk import Numbers, Row, result_slots, walk
from torch_xdist.progress import PROGRESS

# A buffer that nobody else holds is given away even where no result has its shape.
warnings.filterwarnings("ignore", "Some donated buffers were not usable")

PROGRAMS = ProgramCache()


def _count_of_listed() -> int:
    """What `getrefcount` says in a loop over a list of what only the list refers to.

    The list, the loop's name and the argument; Python 3.14 does not count the last.
    """
    listed = [object()]
    count = 0
    for index in range(len(listed)):
        cell = listed[index]
        count = sys.getrefcount(cell)
    return count


_LISTED = _count_of_listed()


@dataclass(slots=True)
class Launch:
    """What one cut runs: the program's key and what is fed to it."""

    key: tuple[Any, ...]
    outs: tuple[int, ...]
    donated: tuple[jax.Array, ...]
    kept: tuple[jax.Array, ...]


def live_cells(trace: Trace) -> list[Cell]:
    """The cells of this epoch that something besides the trace still refers to, in order."""
    listed, epoch = trace.listed, trace.epoch
    found = []
    for index in range(len(listed)):
        cell = listed[index]
        # One whose storage was freed is of no epoch.
        if sys.getrefcount(cell) > _LISTED and cell.epoch == epoch:
            found.append(cell)
    return found


def prepare(trace: Trace, outs: tuple[int, ...], *, may_donate: bool) -> Launch:
    """Decide what is donated and make the key."""
    donated: list[Any] = []
    kept: list[Any] = []
    mask = []
    buffers = trace.leaf_buffers
    for index in range(len(buffers)):
        buffer = buffers[index]
        give = may_donate and sys.getrefcount(buffer) <= _LISTED
        (donated if give else kept).append(buffer)
        mask.append(give)
    leaves = (tuple(trace.leaf_slots), tuple(trace.leaf_kinds), tuple(mask))
    key = (tuple(trace.rows), *leaves, outs, trace.device_index)
    return Launch(key, outs, tuple(donated), tuple(kept))


def find(trace: Trace, launch: Launch) -> Program:
    """The program of a launch, from the cache or made anew."""
    program = PROGRAMS.get(launch.key)
    if program is None:
        metrics.count("UncachedCompile")
        program = make(trace, launch)
        PROGRAMS.put(launch.key, program)
    else:
        metrics.count("CachedCompile")
    return program


def make(trace: Trace, launch: Launch) -> Program:
    """Build the function of a trace; JAX compiles it at its first run."""
    rows = list(trace.rows)
    slots = list(trace.leaf_slots)
    mask = launch.key[3]
    given = [slot for slot, give in zip(slots, mask) if give]
    held = [slot for slot, give in zip(slots, mask) if not give]
    starts = result_slots(rows, set(slots))
    types = {row[0]: number_types(row[0]) for row in rows}
    outs = launch.outs

    def step(donated: Any, kept: Any, floats: Any, ints: Any) -> list[Any]:
        env = dict(zip(given, donated))
        env.update(zip(held, kept))
        walk(rows, starts, env, Numbers(floats, ints), types)
        return [env[slot] for slot in outs]

    if any(row[0].is_collective for row in rows):
        calls = [
            (call(row[0]), trace.places.get(start, ""))
            for row, start in zip(rows, starts)
            if row[0].is_collective
        ]
        return Program(collective_program.compiled(step, calls), outs, fingerprint(rows))
    return Program(jax.jit(step, donate_argnums=(0,)), outs, fingerprint(rows))


def fingerprint(rows: Sequence[Row]) -> str:
    """A digest of what the rows compute; the same on every rank that recorded the same."""
    text = "\n".join(describe(row) for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def describe(row: Row) -> str:
    """One row in words."""
    plan: Plan = row[0]
    return f"{plan!r} {plan.args} {sorted(plan.kwargs.items())} {row[1:]}"


def call(plan: Plan) -> str:
    """A collective in words, the same on every rank that records the same."""
    return f"{plan!r} {plan.args[-1]}".removeprefix("xla.")


def execute(trace: Trace, program: Program, launch: Launch) -> list[jax.Array]:
    """Run a program on the device of its trace. The call returns before the device is done."""
    floats = np.asarray(trace.floats, np.float64)
    ints = np.asarray(trace.ints, np.int64)
    if program.is_compiled:
        return _call(trace, program, launch, floats, ints)
    program.signature = jax.tree.map(_abstract, (launch.donated, launch.kept, floats, ints))
    PROGRESS.compiling = True
    started = time.perf_counter()
    try:
        results = _call(trace, program, launch, floats, ints)
    finally:
        PROGRESS.compiling = False
    program.is_compiled = True
    metrics.observe("CompileTime", time.perf_counter() - started)
    return results


def _abstract(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _call(
    trace: Trace, program: Program, launch: Launch, floats: np.ndarray, ints: np.ndarray
) -> list[jax.Array]:
    started = time.perf_counter()
    if trace.device_index:
        with jax.default_device(device.jax_device(trace.device_index)):
            results = program.run(launch.donated, launch.kept, floats, ints)
    else:
        results = program.run(launch.donated, launch.kept, floats, ints)
    metrics.observe("ExecuteTime", time.perf_counter() - started)
    return results

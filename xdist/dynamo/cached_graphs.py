"""Graphs that are compiled once and run with other operands.

A graph is the rows that some values need, without their operands: `capture` takes it from a trace,
`warm_up` compiles it, `run` runs it on buffers in the order of `leaves`. Random rows draw anew at
every run. The private calls of torch_xla find a graph by its hash.
"""

import hashlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from torch_xdist import metrics, settings
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.programs import program
from torch_xdist.core.programs.launch import Launch, prepare
from torch_xdist.core.programs.program_cache import Program
from torch_xdist.core.rows import program_words
from torch_xdist.core.run import analysis, cuts, reports
from torch_xdist.core.run.device_trace import DeviceTrace, trace_of_thread
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.tapes.partial_run import copy_rows, post_order
from torch_xdist.core.trace import donation, global_state, op_counts
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Entry, Tape, rows_of, types_of
from torch_xdist.core.trace.values import Device, Value
from torch_xdist.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Graph:
    """The rows that some values need.

    Attributes:
        entries: of a tape that holds these rows alone.
        leaves: the slots of its operands, in torch_xla's order.
        outs: the slots of its results; no leaf is one.
        types: of the results.
        scalars: of the rows that have some, by slot.
        collectives: where they were recorded, by slot.
        donated: for each leaf whether its memory is given away.
        tilings: how results lie on the logical device, by slot.
    """

    device: Device
    entries: list[Entry]
    leaves: tuple[int, ...]
    outs: tuple[int, ...]
    types: tuple[TensorType, ...]
    scalars: dict[int, tuple[Any, ...]]
    collectives: dict[int, str]
    donated: tuple[bool, ...]
    tilings: dict[int, Tiling] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """32 hexadecimal digits, equal for equal graphs whose Python numbers are equal."""
        rows = rows_of(self.entries)
        scalars = [(slot, self._fixed(slot, row)) for slot, row in rows if slot in self.scalars]
        types = types_of(self.entries)
        parts = [
            *(program_words.describe(row) for _, row in rows),
            repr([types[slot] for slot in self.leaves]),
            repr((self.leaves, self.outs, scalars, self.donated)),
            repr(sorted((slot, tiling.text) for slot, tiling in self.tilings.items())),
            repr((global_state.of_program(), settings.auto_spmd())),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def _fixed(self, slot: int, row: Any) -> tuple[Any, ...]:
        """A row's runtime scalars without its random numbers."""
        given = self.scalars[slot]
        return given[:-2] if row[0].is_random else given


def capture(
    trace: DeviceTrace, values: Sequence[Value]
) -> tuple[Graph, list[jax.Array], list[Any]]:
    """The graph that leads to some values of a trace.

    Returns it, the buffers of its leaves, and for each value what it is: its place among the
    results, or its buffer where it is a leaf.
    """
    slots = [trace.slot_of(value) for value in values]
    tape = trace.tape
    op_counts.count_rows(tape)
    part = Tape()
    # In an order that does not depend on when an operand was first used.
    places = copy_rows(tape, _in_post_order(tape, slots), part)
    roots = [places[slot] for slot in slots]
    outs = tuple(dict.fromkeys(root for root in roots if root not in part.buffers))
    leaves, buffers = tuple(part.buffers), [*part.buffers.values()]
    types = types_of(part.entries)
    said = [(root, getattr(value, "tiling", None)) for root, value in zip(roots, values)]
    graph = Graph(
        trace.device,
        part.entries,
        leaves,
        outs,
        tuple(types[slot] for slot in outs),
        part.scalars,
        part.collectives,
        tuple(map(donation.is_taken_by_graphs, buffers)),
        {slot: tiling for slot, tiling in said if tiling is not None},
    )
    found = [part.buffers.get(root, outs.index(root) if root in outs else None) for root in roots]
    return graph, buffers, found


def _in_post_order(tape: Tape, roots: Sequence[int]) -> list[int]:
    """The first slots of the rows that lead to the roots, and the leaves they read."""
    first_of = {
        slot: first
        for first, row in rows_of(tape.entries)
        for slot in range(first, first + max(1, len(row[0].types)))
    }

    def operands_of(slot: int) -> list[int]:
        row: Any = tape.entries[slot] if slot in first_of else ()
        return [first_of.get(operand, operand) for operand in row[1:]]

    return post_order([first_of.get(root, root) for root in roots], operands_of)


def _launch(graph: Graph, buffers: Sequence[jax.Array]) -> Launch:
    """One run of a graph on these operands."""
    tape = Tape()
    tape.entries = graph.entries
    given = tape.buffers = dict(zip(graph.leaves, buffers))
    tape.scalars = _drawn(graph)
    tape.collectives = graph.collectives
    donated = {slot for slot, give in zip(graph.leaves, graph.donated) if give}
    if donated:
        # XLA takes a buffer that it may overwrite once.
        uses = Counter(map(id, buffers))
        donated = {slot for slot in donated if uses[id(given[slot])] == 1}
    return prepare(
        tape, graph.device, graph.outs, may_donate=False, donated=donated, tilings=graph.tilings
    )


def _drawn(graph: Graph) -> dict[int, tuple[Any, ...]]:
    """The runtime scalars, with new numbers for the random rows."""
    random = [slot for slot, row in rows_of(graph.entries) if row[0].is_random]
    if not random:
        return graph.scalars
    draw = graph.device.random.next
    return graph.scalars | {slot: (*graph.scalars[slot][:-2], *draw()) for slot in random}


def warm_up(graph: Graph, buffers: Sequence[jax.Array]) -> None:
    """Compile a graph for these operands; nothing runs."""
    if graph.outs:
        _program(_launch(graph, buffers))


def _program(launch: Launch) -> tuple[Launch, Program, bool]:
    """A launch, its program, and whether that was compiled just now."""
    compiled = program.PROGRAMS.get(launch.key())
    if compiled is not None:
        return launch.giving(compiled.mask), compiled, False
    launch, compiled, is_new = program.find(launch)
    if is_new:
        reason = analysis.DYNAMO_COMPILE
        analysis.of_compilation(launch, reason, reason, compiled)
    return launch, compiled, is_new


def run(graph: Graph, buffers: Sequence[jax.Array]) -> list[XlaTensor]:
    """Run a graph on these operands; its results, in the order of `outs`."""
    started = time.perf_counter()
    launch = _launch(graph, buffers)
    metrics.observe("RunCachedGraphInputData", time.perf_counter() - started)
    if not graph.outs:
        return []
    trace = trace_of_thread(graph.device)
    launch, compiled, is_new = _program(launch)
    reports.before_run(launch.tape, graph.device, graph.outs, is_dynamo=True)
    trace.last_cut = cuts.note(analysis.DYNAMO, compiled.rows, is_new, compiled.fingerprint)
    trace.cut_count += 1
    analysis.of_execution(launch, analysis.DYNAMO, analysis.DYNAMO, compiled)
    results: list[list[jax.Array]] = []
    program.execute(compiled, launch, results)
    started = time.perf_counter()
    tensors = [*map(_holding(graph, trace), graph.outs, graph.types, results[0])]
    metrics.observe("RunCachedGraphOutputData", time.perf_counter() - started)
    return tensors


def _holding(graph: Graph, trace: DeviceTrace) -> Callable[[int, TensorType, jax.Array], XlaTensor]:
    """What makes a tensor of a result."""

    def holding(slot: int, type_: TensorType, buffer: jax.Array) -> XlaTensor:
        value = Value(type_, trace)
        value.buffer = buffer
        if slot in graph.tilings:
            value.tiling = graph.tilings[slot]
        return wrap(value)

    return holding


# By hash, the least recently used first; several threads keep and find graphs.
_graphs: OrderedDict[str, Graph] = OrderedDict()
_lock = threading.Lock()


def remember(graph: Graph) -> str:
    """Keep a graph under its hash, which is returned."""
    key = graph.hash
    with _lock:
        _graphs[key] = graph
        _graphs.move_to_end(key)
        while len(_graphs) > settings.current().cache_size:
            _graphs.popitem(last=False)
    return key


def by_hash(key: str) -> Graph:
    """The graph that was kept under a hash. Raises DeviceError where there is none."""
    with _lock:
        graph = _graphs.get(key)
        if graph is not None:
            _graphs.move_to_end(key)
    if graph is None:
        raise DeviceError(
            f"_run_cached_graph: no graph of hash {key} was compiled, or"
            f" {settings.current().cache_size} others were since (XLA_COMPILATION_CACHE_SIZE); call"
            " _xla_warm_up_cache with its results first"
        )
    return graph

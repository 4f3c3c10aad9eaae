"""A function of tensors recorded together with its gradients, and taken apart again.

The function runs once, and torch's own backward pass of it, in one symbolic trace. What was
recorded so is a program of rows; its part that needs no gradients of the results is the forward
pass, the rest the backward pass, and what stands between them is saved from the one to the other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.programs.interpreter import scalar_types
from torch_xdist.core.record.symbolic_trace import Subgraph, SymbolicTrace, TracedFunction
from torch_xdist.core.run.device_trace import HERE, trace_of_thread
from torch_xdist.core.trace.notes import carry, notes_of, with_notes_of
from torch_xdist.core.trace.placeholders import Placeholder
from torch_xdist.core.trace.tensor_types import TensorType, dense_type
from torch_xdist.core.trace.trace import rows_of
from torch_xdist.core.trace.values import Value
from torch_xdist.dtypes import to_jax


@dataclass(frozen=True, slots=True)
class Joint:
    """A function and its gradients.

    Attributes:
        subgraph: operands: the inputs, what is read from outside, the results' gradients; results:
            those of the function, then the gradients that there are.
        inputs: how many inputs there are.
        outside: what is read from outside.
        outer: those tensors from outside that need gradients.
        types: of the function's results.
        given: of each result whether its gradient is an operand.
        found: for each input, then each of `outer`, the place of its gradient among the gradients,
            or -1.
        written: the roots from outside that the function writes.
    """

    subgraph: Subgraph
    inputs: int
    outside: tuple[Value, ...]
    outer: tuple[XlaTensor, ...]
    types: tuple[TensorType, ...]
    given: tuple[bool, ...]
    found: tuple[int, ...]
    written: tuple[Value, ...]

    @property
    def primals(self) -> tuple[int, ...]:
        """The slots of the inputs and of what is read from outside."""
        return self.subgraph.operands[: self.inputs + len(self.outside)]

    @property
    def tangents(self) -> tuple[int, ...]:
        """The slots of the results' gradients."""
        return self.subgraph.operands[self.inputs + len(self.outside) :]


@dataclass(frozen=True, slots=True)
class Split:
    """A function's forward and backward pass.

    Attributes:
        forward: operands: the primals; results: those of the function, then what is saved.
        backward: operands: the saved primals, what else is saved, the results' gradients; results:
            the gradients.
        kept: the places of the saved primals among the primals.
    """

    forward: Subgraph
    backward: Subgraph
    kept: tuple[int, ...]


def record_joint(
    where: str,
    function: Callable[..., Sequence[Any]],
    like: Sequence[torch.Tensor],
    needs: Sequence[bool],
    *,
    leaves: bool = False,
) -> Joint:
    """Record a function of tensors like these, and its gradients by those it says need them.

    Args:
        function: flat tensors in and out.
        leaves: the inputs that need gradients are leaves, which torch lets nobody write in place.
    """
    seeds: list[Value] = []
    said: dict[str, Any] = {}

    def both(*inputs: Any) -> list[Any]:
        results = list(function(*inputs))
        trace: SymbolicTrace = HERE.symbolic  # type: ignore[assignment]
        outer = [t for t in trace.tensors.values() if t.requires_grad]
        smooth = [result.requires_grad for result in results]
        sources = [r for r, is_smooth in zip(results, smooth) if is_smooth]
        seeds.extend(_seed(result) for result in sources)
        wanted = [x for x, need in zip(inputs, needs) if need] + outer
        grads: Sequence[Any] = [None] * len(wanted)
        if sources and wanted:
            grads = torch.autograd.grad(sources, wanted, [*map(wrap, seeds)], allow_unused=True)
        said.update(types=[r.value.type for r in results], smooth=smooth, outer=outer, grads=grads)
        return [*results, *(grad for grad in grads if grad is not None)]

    traced = TracedFunction(where, both, like, needs, as_leaves=leaves)
    slot_of = dict(zip(traced.captured, traced.subgraph.operands[len(like) :]))
    outside = [value for value in traced.captured if value not in seeds]
    slots = [*traced.subgraph.operands[: len(like)], *(slot_of[value] for value in outside)]
    # A seed that nothing reads has no slot; any will do for what nobody asks for.
    nowhere = len(traced.subgraph.entries)
    slots += [slot_of.get(seed, nowhere) for seed in seeds]
    graph = traced.subgraph
    return Joint(
        Subgraph(graph.entries, tuple(slots), graph.outs, (), graph.floats, graph.ints),
        len(like),
        tuple(outside),
        tuple(said["outer"]),
        tuple(said["types"]),
        tuple(said["smooth"]),
        _places(needs, said["grads"]),
        tuple(traced.written),
    )


def _seed(result: Any) -> Value:
    """Stands outside for the gradient of a result, so that it becomes an operand."""
    type_ = result.value.type
    seed = Value(dense_type(type_.shape, type_.dtype), trace_of_thread(result.value.trace.device))
    seed.buffer = Placeholder(type_.shape, to_jax(type_.dtype))  # type: ignore[assignment]
    return seed


def _places(needs: Sequence[bool], grads: Sequence[Any]) -> tuple[int, ...]:
    """For each input, then each outer tensor, its place among the gradients that there are."""
    count, of_wanted = 0, []
    for grad in grads:
        of_wanted.append(-1 if grad is None else count)
        count += grad is not None
    rest = iter(of_wanted)
    return (*(next(rest) if need else -1 for need in needs), *rest)


def split(joint: Joint) -> Split:
    """Save what the backward pass reads, and compute nothing twice.

    Exceptions are what costs nothing: views and constants are made again.
    """
    graph, results = joint.subgraph, len(joint.types)
    rows = dict(rows_of(graph.entries))
    first = {s: f for f, row in rows.items() for s in range(f, f + max(1, len(row[0].types)))}
    forward = _needed(rows, first, graph.outs[:results])
    backward: set[int] = set()
    saved: set[int] = set()
    waiting = [*graph.outs[results:]]
    while waiting:
        slot: Any = waiting.pop()
        start = first.get(slot)
        if start is None or (start in forward and not _is_free(rows[start])):
            saved.add(slot)
        elif start not in backward:
            backward.add(start)
            waiting.extend(rows[start][1:])
    return split_at(joint, forward, backward, saved.difference(joint.tangents))


def split_at(joint: Joint, forward: set[int], backward: set[int], saved: Iterable[int]) -> Split:
    """The split whose passes have these rows, by their first slots, and these slots saved."""
    graph, results, primals = joint.subgraph, len(joint.types), joint.primals
    saved = set(saved)
    kept = tuple(i for i, slot in enumerate(primals) if slot in saved)
    others = sorted(saved - set(primals))
    operands = [*(primals[i] for i in kept), *others, *joint.tangents]
    return Split(
        masked(graph, forward, primals, [*graph.outs[:results], *others]),
        masked(graph, backward, operands, graph.outs[results:]),
        kept,
    )


def _needed(rows: dict[int, Any], first: dict[int, int], wanted: Sequence[Any]) -> set[int]:
    found: set[int] = set()
    waiting = [first[slot] for slot in wanted if slot in first]
    while waiting:
        start = waiting.pop()
        if start not in found:
            found.add(start)
            waiting.extend(first[slot] for slot in rows[start][1:] if slot in first)
    return found


def _is_free(row: Any) -> bool:
    plan = row[0]
    if plan.is_random or plan.is_collective:
        return False
    return len(row) == 1 or (plan.op is not None and plan.op.is_view)


def masked(
    graph: Subgraph, rows: set[int], operands: Sequence[int], outs: Sequence[int | None]
) -> Subgraph:
    """The part of a recorded function that has only these rows; slots stay what they are."""
    places = {s for f in rows for s in range(f, f + max(1, len(graph.entries[f][0].types)))}  # type: ignore[index,union-attr]
    kept = [e if s in places else None for s, e in enumerate(graph.entries)]
    entries = with_notes_of(graph.entries, kept)
    scalars = scalars_by_row(graph)
    numbers = [number for start in sorted(rows) for number in scalars[start]]
    floats = tuple(n for n in numbers if isinstance(n, float))
    ints = tuple(n for n in numbers if not isinstance(n, float))
    return Subgraph(entries, tuple(operands), tuple(outs), (), floats, ints)


def scalars_by_row(graph: Subgraph) -> dict[int, tuple[int | float, ...]]:
    """What each row is fed with, by its first slot."""
    floats, ints = iter(graph.floats), iter(graph.ints)
    return {
        start: tuple(
            next(floats) if type_ is float else next(ints) for type_ in scalar_types(row[0])
        )
        for start, row in rows_of(graph.entries)
    }


def replay(graph: Subgraph, tensors: Sequence[XlaTensor]) -> list[XlaTensor]:
    """Record a function's rows once more, of other operands, where this thread records."""
    trace = HERE.trace
    values: dict[int, Any] = dict(zip(graph.operands, (tensor.value for tensor in tensors)))
    scalars, noted = scalars_by_row(graph), bool(notes_of(graph.entries))
    for start, (plan, *operands) in rows_of(graph.entries):
        found = replay_row(plan, scalars[start], [values[slot] for slot in operands])
        values.update(enumerate(found, start))
        if noted and found[0] is not None:
            carry(graph.entries, start, trace.tape.entries, found[0].slot)
    trace.note(tensors)
    return [wrap(values[slot]) for slot in graph.outs]  # type: ignore[index]


def replay_row(plan: Any, scalars: Sequence[int | float], operands: Sequence[Value]) -> list[Any]:
    """Record one row once more; a random one draws new numbers."""
    given = tuple(scalars[:-2]) + HERE.trace.random.next() if plan.is_random else tuple(scalars)
    return HERE.trace.record(plan, operands, given)

"""Slices that move: `data[i : i + 4]` in a loop is an input of one program, not one for each i.

Where a slice begins is a constant of the program, which is what XLA likes best, and what most
slices are. But where two programs differ in nothing else, the slices of what has values already are
taken before the program, at places that are numbers, and the program is fed with them.
"""

import functools
import itertools
import threading
from collections import OrderedDict
from typing import Any

import jax

from torch_xdist import metrics
from torch_xdist.core.programs import program
from torch_xdist.core.programs.program import Launch
from torch_xdist.core.run.partial_run import copy_rows
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Row, Tape, rows_of
from torch_xdist.ops.table import LOWERINGS

_MOVING = {"aten.slice.Tensor", "aten.select.int"}
# Views of slices; torch tells where each begins in its storage, so they are others for each place.
_FOLLOWING = frozenset(
    f"aten.{name}"
    for name in "t.default transpose.int permute.default unsqueeze.default squeeze.dim"
    " squeeze.default view.default".split()
)
# How many programs are remembered without the places of their slices.
_REMEMBERED = 1024
_seen: OrderedDict[int, None] = OrderedDict()
_lock = threading.Lock()


def as_inputs(launch: Launch) -> Launch | None:
    """The launch with its slices as leaves; None where none is like it but for their places."""
    moving = {} if launch.placement is not None else _moving_rows(launch)
    if not moving or not _is_known(launch, moving):
        return None
    taken: dict[int, jax.Array] = {}
    for slot, row in moving.items():
        whole = taken[row[1]] if row[1] in taken else launch.tape.buffers[row[1]]
        plan = row[0]
        if plan.name in _MOVING:
            taken[slot] = _part(whole, plan)
        else:
            taken[slot] = LOWERINGS[plan.name](whole, *plan.args[1:], **plan.kwargs)
    tape, places, fed = _fed_with(launch.tape, taken)
    metrics.count("MovingSlices", len(fed))
    given = [places[s] for s in itertools.compress(launch.leaves, launch.mask) if s in places]
    outs = [places[slot] for slot in launch.outs]
    return program.prepare(tape, launch.device, outs, may_donate=False, donated={*given, *fed})


def _moving_rows(launch: Launch) -> dict[int, Row]:
    """The slices of leaves, and of such slices, by slot."""
    found: dict[int, Row] = {}
    wanted = set(launch.outs)
    for slot, row in rows_of(launch.entries):
        plan = row[0]
        if slot in wanted or plan.op is None:
            continue
        if plan.name in _FOLLOWING and row[1] in found:
            found[slot] = row
        elif plan.name in _MOVING and plan.types[0].numel:
            is_unbroken = len(plan.args) < 5 or plan.args[4] == 1
            is_of_leaf = row[1] in found or launch.entries[row[1]].__class__ is TensorType
            if is_unbroken and is_of_leaf:
                found[slot] = row
    return found


def _is_known(launch: Launch, moving: dict[int, Row]) -> bool:
    """Whether a program was asked for that differs in the places of the slices alone; it is now."""
    entries: list[Any] = list(launch.entries)
    for slot, row in moving.items():
        plan = row[0]
        how = _dim(plan) if plan.name in _MOVING else repr(plan.args[1:])
        entries[slot] = plan.op, plan.operand_types[0].shape, plan.types[0].shape, how, row[1]
    # As a number, so that it keeps nothing alive: a wrong match costs time, and no value.
    key = hash((tuple(entries), *launch.key()[1:]))
    with _lock:
        if key in _seen:
            _seen.move_to_end(key)
            return True
        _seen[key] = None
        if len(_seen) > _REMEMBERED:
            _seen.popitem(last=False)
    return False


def _dim(plan: Plan) -> int:
    dim = plan.args[1] if len(plan.args) > 1 else 0
    return int(dim) % len(plan.operand_types[0].shape)


def _part(whole: jax.Array, plan: Plan) -> jax.Array:
    """The values of a slice."""
    of, part, dim = plan.operand_types[0], plan.types[0], _dim(plan)
    assert part is not None
    begin = (part.offset - of.offset) // of.stride[dim] if of.stride[dim] else 0
    size = part.shape[dim] if len(part.shape) == len(of.shape) else None
    return _slice(whole, begin, dim, size)  # type: ignore[no-any-return]


@functools.partial(jax.jit, static_argnums=(2, 3))
def _slice(whole: jax.Array, begin: Any, dim: int, size: int | None) -> jax.Array:
    """`size` elements along a dim from `begin`; None: one, without the dim."""
    if size is None:
        return jax.lax.dynamic_index_in_dim(whole, begin, dim, keepdims=False)
    return jax.lax.dynamic_slice_in_dim(whole, begin, size, dim)


def _fed_with(source: Tape, taken: dict[int, jax.Array]) -> tuple[Tape, dict[int, int], set[int]]:
    """A tape whose slices are leaves, the new slot of each old one, and the slots of the slices."""
    tape, fed = Tape(), set()
    places: dict[int, int] = {}
    rows = {slot: row for slot, row in rows_of(source.entries) if slot not in taken}
    used = {slot for row in rows.values() for slot in row[1:]}
    for slot, entry in enumerate(source.entries):
        if slot in taken and slot in used:
            type_ = entry[0].types[0]  # type: ignore[index]
            place = places[slot] = tape.enter(type_.at_zero or type_, taken[slot])
            fed.add(place)
        elif slot in rows or (slot in source.buffers and slot in used):
            copy_rows(source, [slot], tape, places)
    return tape, places, fed

"""Pending graphs as functions of their leaves, lowered and never run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from torch_xdist.core.programs import program
from torch_xdist.core.programs.hlo_text import module_text
from torch_xdist.core.programs.interpreter import ScalarFeed, interpret, scalars_of
from torch_xdist.core.programs.jax_internals import proto_of_module, shardings_in_hlo
from torch_xdist.core.programs.launch import prepare
from torch_xdist.core.programs.locations import located, locations_of, no_scope, row_scope
from torch_xdist.core.run.graph_text import part_of
from torch_xdist.core.trace.notes import notes_of
from torch_xdist.core.trace.trace import Tape
from torch_xdist.core.trace.values import Device

_MODULE_NAME = re.compile(r"^module @\S+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """A graph as an HLO module.

    Attributes:
        leaves: the buffers its parameters stand for, in order.
        proto: the module, serialized.
    """

    leaves: tuple[Any, ...]
    proto: bytes


def lower_graph(tape: Tape, device: Device, roots: Sequence[int], name: str) -> LoweredGraph:
    """What leads to the root slots of a tape, as one module with a result for each of them.

    Numbers of the trace are constants of the module, the keys of random numbers too. On the logical
    device they are parameters behind those of the leaves.
    """
    part, places = part_of(tape, device, roots)
    outs = [places[slot] for slot in roots]
    if device.layout is None:
        lowered = _as_function(part, outs, name)
    else:
        lowered = program.lowered(prepare(part, device, outs, may_donate=False))
    with shardings_in_hlo():
        module = module_text(lowered, with_locations=bool(notes_of(part.entries)))
    module = _MODULE_NAME.sub(lambda _: f'module @"jit_{name}"', module, count=1)
    return LoweredGraph(tuple(part.buffers.values()), proto_of_module(module))


def _as_function(part: Tape, outs: Sequence[int], name: str) -> Any:
    entries, leaves = tuple(part.entries), tuple(part.buffers)
    floats, ints = map(np.asarray, scalars_of(part, entries))
    locations = locations_of(part.entries)
    scope = row_scope if locations else no_scope

    def graph(*arrays: Any) -> list[Any]:
        env: dict[int, Any] = dict(zip(leaves, arrays))
        feed = ScalarFeed(floats.astype(np.float64), ints.astype(np.int64))
        interpret(entries, env, feed, scope)
        return [env[slot] for slot in outs]

    graph.__name__ = name
    types = [jax.ShapeDtypeStruct(b.shape, b.dtype) for b in part.buffers.values()]
    return located(jax.jit(graph, keep_unused=True).lower(*types), locations)

"""One way a function goes: when a call is of it, and how such a call is done without recording."""

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import torch
from torch.utils import _pytree as pytree

from torch_xdist import metrics, settings
from torch_xdist.core.devices import transfer
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.run.device_trace import DeviceTrace
from torch_xdist.core.run.known_run import run_known
from torch_xdist.core.trace import donation, op_counts
from torch_xdist.core.trace.values import RootValue, Value, root_of
from torch_xdist.replay.ends import view_of
from torch_xdist.replay.gradients import Gradients
from torch_xdist.replay.guard import Check, Guard, compiled
from torch_xdist.replay.numbers import Feeder
from torch_xdist.replay.reach import Reach
from torch_xdist.replay.script import ARGUMENT, GRADIENT, HELD, UPLOAD, Returned, Script, Source


class Broken(NamedTuple):
    """Why a call is not of a variant."""

    kind: str
    where: str
    was: str
    now: str


class Ready(NamedTuple):
    """What a replay takes: the tensors that are others at each call, and all buffers."""

    arguments: list[XlaTensor]
    gradients: list[Any]
    donated: tuple[Any, ...]
    kept: tuple[Any, ...]


class Variant:
    """A call that was recorded, and can be replayed once another one has confirmed it.

    Attributes:
        script: what it does.
        guard: what Python's objects must be for it.
        is_confirmed: whether another recorded call has done the same.
    """

    def __init__(self, script: Script, reach: Reach, trace: DeviceTrace) -> None:
        self.script = script
        self.guard = Guard(_checks(script, reach), reach.names)
        self.is_confirmed = False
        self._arguments = _arguments_of(reach)
        roots = [root_of(argument.tensor.value) for argument in reach.arguments]
        self._pattern = [roots.index(root) for root in roots]
        self._held = [root_of(tensor.value) for tensor in script.held]
        self._ids_of_held = {*map(id, self._held)}
        self._feeder = Feeder(script.numbers, script.counters)
        self._uploads = [RootValue(None, trace) for _ in script.uploads]  # type: ignore[arg-type]
        pairs = zip(script.leaves, script.mask)
        self._given_uploads = [
            self._uploads[source.number] for source, give in pairs if give and source.kind == UPLOAD
        ]
        self._gradients = Gradients(script, trace)
        self._written = [
            (self._held[write.source.number], write.place)
            for write in script.writes
            if write.source.kind == HELD
        ]
        self._written_elsewhere = [w for w in script.writes if w.source.kind != HELD]
        self._versions = [script.held[index] for index in script.versions]
        self._cells, self._places = self._cells_of_leaves()
        self._keep = [not give for give in script.mask]
        self._is_leaf = script.form.is_leaf()
        made = len(script.made)
        self._tally: metrics.Tally = ((op_counts.CREATED, made),) if made else ()

    def _cells_of_leaves(self) -> tuple[list[Any], list[tuple[int, Source]]]:
        """What holds each leaf's buffer, and where these are others at each call."""
        cells: list[Any] = []
        places = []
        for place, source in enumerate(self.script.leaves):
            if source.kind == HELD:
                cells.append(self._held[source.number])
            elif source.kind == UPLOAD:
                cells.append(self._uploads[source.number])
            else:
                cells.append(None)
                places.append((place, source))
        return cells, places

    def gather(self, args: Any, kwargs: Any) -> Ready | Broken:
        """Find the buffers of a call for which the guard holds; nothing changes by that."""
        arguments = self._arguments(args, kwargs)
        roots = [root_of(argument.value) for argument in arguments]
        ids = [*map(id, roots)]
        if [ids.index(one) for one in ids] != self._pattern or not self._ids_of_held.isdisjoint(
            ids
        ):
            return Broken("alias", "its arguments", "memory of their own", "shared with others")
        gradients = self._gradients.now()
        why = self._gradients.differs(gradients, {*ids, *self._ids_of_held})
        if why:
            return Broken("gradient", why, "as it was recorded", "otherwise")
        if not self._feeder.is_even():
            return Broken("optimizer", "the step counters of a group", "equal", "not equal")
        return self._buffers(arguments, roots, gradients)

    def _buffers(
        self, arguments: list[XlaTensor], roots: list[Value], gradients: list[Any]
    ) -> Ready | Broken:
        cells = self._cells.copy()
        for place, (kind, index) in self._places:
            cells[place] = roots[index] if kind == ARGUMENT else root_of(gradients[index].value)
        for cell, array in zip(self._uploads, self.script.uploads):
            if cell.buffer is None:
                cell.buffer = transfer.put(array, cell.trace.device)  # type: ignore[assignment]
        alone = RootValue(None, None)  # type: ignore[arg-type]
        alone.buffer = object()  # type: ignore[assignment]
        cells.append(alone)
        buffers = [cell.buffer for cell in cells]
        *counts, least = map(sys.getrefcount, buffers)
        buffers.pop()
        mask = self.script.mask
        if not _are_arrays(frozenset(map(type, buffers))):
            return Broken("memory", "a tensor that it reads", "there", "not there")
        if max(itertools.compress(counts, mask), default=0) > least:
            return Broken("buffers", "memory that it overwrites", "held once", "held by others")
        donated = tuple(itertools.compress(buffers, mask))
        if not donation.may_take(donated):
            return Broken("buffers", "memory that it overwrites", "its own", "known to others")
        kept = tuple(itertools.compress(buffers, self._keep))
        return Ready(arguments, gradients, donated, kept)

    def replay(self, trace: DeviceTrace, ready: Ready) -> Any:
        """Do a call again; returns what its function returns."""
        stream = trace.random
        arguments, gradients, donated, kept = ready
        del ready
        floats, ints = self._feeder.take(stream)
        made: list[Any] = []
        over = self._gradients.release(gradients)
        for cell in self._given_uploads:
            cell.buffer = None

        def hand_over(results: list[jax.Array]) -> None:
            self._write(results, arguments, gradients)
            self._gradients.hand_over(results, trace, over)
            made.extend(results[place] for place in self.script.made)

        try:
            run_known(trace, self.script.known, (donated, kept, floats, ints), hand_over)
        except BaseException:
            self._gradients.forget()
            if not any(buffer.is_deleted() for buffer in donated):
                self._feeder.give_back(stream)
            raise
        metrics.count("ReplayedStep")
        metrics.note(self._tally)
        return self._returned(trace, made, arguments)

    def _write(
        self, results: list[jax.Array], arguments: list[XlaTensor], gradients: list[Any]
    ) -> None:
        for value, place in self._written:
            value.buffer, value.epoch = results[place], 0
            value.generation += 1
        torch.autograd.graph.increment_version(self._versions)
        for (kind, index), place in self._written_elsewhere:
            tensor = arguments[index] if kind == ARGUMENT else gradients[index]
            value = root_of(tensor.value)
            value.buffer, value.epoch = results[place], 0
            value.generation += 1
            torch.autograd.graph.increment_version(tensor)
        if settings.current().sync_wait:
            for result in results:
                result.block_until_ready()

    def _returned(
        self, trace: DeviceTrace, made: list[jax.Array], arguments: list[XlaTensor]
    ) -> Any:
        script = self.script
        memory = []
        for place, buffer in enumerate(made):
            value = RootValue(script.types[place], trace)
            value.buffer = buffer
            memory.append(value)
        leaves = [self._leaf(one, memory, arguments) for one in script.returned]
        return leaves[0] if self._is_leaf else pytree.tree_unflatten(leaves, script.form)

    def _leaf(self, one: Returned, memory: list[Any], arguments: list[XlaTensor]) -> Any:
        if one.kind == "plain":
            return one.value
        if one.source is None:
            return wrap(view_of(memory[one.value], one.steps))
        kind, index = one.source
        tensor: Any = arguments[index] if kind == ARGUMENT else None
        if kind == HELD:
            tensor = self.script.held[index]
        elif kind == GRADIENT:
            tensor = self.script.parameters[index].grad
        if one.kind == "same":
            return tensor
        return wrap(view_of(root_of(tensor.value), one.steps))


@functools.cache
def _are_arrays(kinds: frozenset[type]) -> bool:
    """Whether all of these are classes of JAX's arrays: no placeholder, no missing buffer."""
    return all(issubclass(kind, jax.Array) for kind in kinds)


def _arguments_of(reach: Reach) -> Callable[[Any, Any], list[XlaTensor]]:
    """What finds the tensors among the arguments of a call."""
    found = ", ".join(argument.expression for argument in reach.arguments)
    code = compiled(f"def arguments(a, k): return [{found}]", reach.names)
    return code["arguments"]  # type: ignore[no-any-return]


# Hyperparameters of which a zero leaves out a part of the update.
_WITHOUT = frozenset(["dampening", "momentum", "weight_decay"])


def _checks(script: Script, reach: Reach) -> list[Check]:
    """The conditions of a script: hyperparameters that are inputs of its program are free."""
    free: set[Check] = set()
    bound: list[Check] = []
    groups = [(feed.group, feed.update.names) for feed in script.numbers.feeds]
    groups += [(group, ("lr",)) for group in script.numbers.rates]
    for group, keys in groups:
        base = reach.names.of(group)
        for key in keys:
            free |= {*reach.hyperparameters.get((id(group), key), ())}
            bound += _kind_of(f"{base}[{key!r}]", group[key], f"the {key!r} of a group")
        for key in _WITHOUT.intersection(keys):
            now, was = f"{base}[{key!r}]", group[key]
            holds = f"bool({now}) is {bool(was)}"
            bound.append(Check(holds, now, repr(was), f"the {key!r} of a group", "value"))
    return [*(check for check in reach.checks if check not in free), *bound]


def _kind_of(expression: str, value: Any, where: str) -> list[Check]:
    """A hyperparameter that is free stays of its type: a tensor would be none."""
    if isinstance(value, tuple):
        return [
            c for i, one in enumerate(value) for c in _kind_of(f"{expression}[{i}]", one, where)
        ]
    kind = value.__class__.__name__
    return [Check(f"{expression}.__class__ is {kind}", expression, f"a {kind}", where, "value")]

"""A captured graph of torch as a function of device tensors.

For each combination of input types and Python numbers its rows are recorded once, on a trace of
their own, with stand-ins for the inputs: nothing of the user's is touched. A call hands the
inputs' buffers to the compiled graph, writes what the graph wrote, and wraps its results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_xdist import settings
from torch_xdist.core.alias.views import write
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.run.device_trace import DeviceTrace
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.trace.values import Value
from torch_xdist.dynamo import cached_graphs
from torch_xdist.dynamo.cached_graphs import Graph
from torch_xdist.dynamo.inputs import buffers_of_inputs, own_trace, stand_ins
from torch_xdist.spmd import marks
from torch_xdist.torch_xla_compat.buffer_donation import alias_with_buffer_donor_config


@dataclass(frozen=True, slots=True)
class Result:
    """A result of the graph, by its place."""

    place: int


@dataclass(frozen=True, slots=True)
class Input:
    """An input, by its place."""

    place: int


@dataclass(frozen=True, slots=True)
class Constant:
    """What does not change from call to call: a number, None, a tensor made of one."""

    value: Any


Source = Result | Input | Constant


@dataclass(frozen=True, slots=True)
class Capture:
    """One recording of a module.

    Attributes:
        operands: where each leaf of the graph comes from; a constant is a buffer.
        written: the places of inputs that are written, and what each is to hold.
        returned: what a call returns.
        kind: of the container that it returns; None for one element by itself.
        marked: the places of inputs that the module shards, and how.
    """

    graph: Graph
    operands: list[Source]
    written: list[tuple[int, Source]]
    returned: list[Source]
    kind: type | None
    marked: tuple[tuple[int, Tiling], ...] = ()


class CapturedModule:
    """A module whose calls run captured graphs; its parameters are inputs like the arguments."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._captures: dict[tuple[Any, ...], Capture] = {}
        held = [*module.parameters(), *module.buffers()]
        self._state = [tensor for tensor in held if tensor.__class__ is XlaTensor]

    def __call__(self, *args: Any) -> Any:
        inputs = self._inputs(args)
        capture = self._find(args, inputs)
        for place, tiling in capture.marked:
            # Those of this call may be others than those it was recorded with.
            if _tiling(inputs[place].value) is None:
                marks.mark(inputs[place], tiling)
        buffers = buffers_of_inputs(inputs)
        operands = [
            buffers[source.place] if isinstance(source, Input) else source.value  # type: ignore[union-attr]
            for source in capture.operands
        ]
        results = cached_graphs.run(capture.graph, operands)
        for place, source in capture.written:
            write(inputs[place].value, self._value(source, inputs, buffers, results))
        found = [self._element(source, inputs, results) for source in capture.returned]
        return found[0] if capture.kind is None else capture.kind(found)

    def capture(self, *args: Any) -> Capture:
        """The recording for arguments like these."""
        return self._find(args, self._inputs(args))

    def _inputs(self, args: Sequence[Any]) -> list[Any]:
        return [arg for arg in args if arg.__class__ is XlaTensor] + self._state

    def _find(self, args: Sequence[Any], inputs: Sequence[Any]) -> Capture:
        numbers = [arg for arg in args if not isinstance(arg, torch.Tensor)]
        key = (*numbers, *map(type, numbers), *[tensor.value.type for tensor in inputs])
        found = self._captures.get(key)
        if found is None:
            found = self._captures[key] = record(self._module, args, inputs)
            # A number among the arguments may be another one at every call.
            while len(self._captures) > settings.current().cache_size:
                self._captures.pop(next(iter(self._captures)), None)
        return found

    @staticmethod
    def _value(
        source: Source, inputs: Sequence[Any], buffers: Sequence[Any], results: Sequence[Any]
    ) -> Value:
        """What an input is to hold."""
        if isinstance(source, Result):
            return results[source.place].value  # type: ignore[no-any-return]
        like = inputs[source.place] if isinstance(source, Input) else source.value
        copy = Value(like.value.type, like.value.trace)
        copy.buffer = buffers[source.place] if isinstance(source, Input) else like.value.buffer
        return copy

    @staticmethod
    def _element(source: Source, inputs: Sequence[Any], results: Sequence[Any]) -> Any:
        if isinstance(source, Result):
            return results[source.place]
        return inputs[source.place] if isinstance(source, Input) else source.value


def record(module: Any, args: Sequence[Any], inputs: Sequence[Any]) -> Capture:
    """Record what a module does with these arguments, and compile it.

    Args:
        inputs: the device tensors among the arguments, and those that the module has.
    """
    here = inputs[0].value.trace.device if inputs else device.device_at(device.index_of(None))
    with stand_ins(inputs) as values, own_trace(here) as trace, torch.no_grad():
        before = [(value.generation, id(value.buffer)) for value in values]
        out = module(*args)
        capture, buffers = _recorded(trace, inputs, values, before, out)
        cached_graphs.warm_up(capture.graph, buffers)
    marked = [
        (place, tiling)
        for place, (tensor, value) in enumerate(zip(inputs, values))
        if (tiling := _tiling(value)) is not None and _tiling(tensor.value) is None
    ]
    return replace(capture, marked=tuple(marked))


def _tiling(value: Value) -> Tiling | None:
    """How a value was said to lie on the logical device."""
    return getattr(value, "tiling", None)


def _recorded(
    trace: DeviceTrace,
    inputs: Sequence[Any],
    values: Sequence[Value],
    before: Sequence[tuple[int, int]],
    out: Any,
) -> tuple[Capture, list[Any]]:
    """What is on a trace after a module's call, and the buffers of its leaves."""
    kind = type(out) if isinstance(out, tuple | list) else None
    outs = list(out) if kind is not None else [out]
    changed = [place for place, v in enumerate(values) if v.generation != before[place][0]]
    places = {id(tensor): place for place, tensor in enumerate(inputs)}
    computed = [o for o in outs if o.__class__ is XlaTensor and id(o) not in places]
    with alias_with_buffer_donor_config():
        graph, buffers, found = cached_graphs.capture(
            trace, [*[values[place] for place in changed], *[o.value for o in computed]]
        )
    of_buffer = {known: place for place, (_, known) in enumerate(before)}
    # An input that was marked has been laid out anew.
    of_buffer |= {id(v.buffer): p for p, v in enumerate(values) if p not in changed}

    def source(what: Any, tensor: Any = None) -> Source:
        if isinstance(what, int):
            return Result(what)
        if id(what) in of_buffer:
            return Input(of_buffer[id(what)])
        return Constant(what if tensor is None else tensor)

    ends = dict(zip(map(id, computed), found[len(changed) :]))
    written = [(p, source(w, wrap(values[p]))) for p, w in zip(changed, found)]
    returned: list[Source] = [
        source(ends[id(o)], o) if id(o) in ends else _as_it_is(o, places) for o in outs
    ]
    operands = [source(buffer) for buffer in buffers]
    return Capture(graph, operands, written, returned, kind), buffers


def _as_it_is(element: Any, places: dict[int, int]) -> Source:
    """An element that no row computes: an input, or what is no device tensor."""
    return Input(places[id(element)]) if id(element) in places else Constant(element)

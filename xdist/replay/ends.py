"""What a call leaves behind, looked at when its function has returned and its rows are pending.

A value that outlives the call is the new content of a tensor that was there, the gradient of a
parameter, or returned. Whatever else outlives it, or is held by more than these, a replay would not
make: such a call is none.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.programs.launch import live_values
from torch_xdist.core.run.device_trace import DeviceTrace
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.user_frames import shortened
from torch_xdist.core.trace.values import RootValue, Value, ViewValue, root_of
from torch_xdist.replay.guard import PLAIN
from torch_xdist.replay.reach import Unfit
from torch_xdist.replay.script import GRADIENT, Gradient, Returned, Source, Write


class Began(Protocol):
    """What there was before the call: a `recording.Before`."""

    parameters: list[XlaTensor]
    had_gradient: list[Any]
    gradient_forms: list[tuple[Any, ...]]

    def source_of_root(self, root: Any) -> Source | None: ...
    def tensor_of(self, source: Source) -> XlaTensor: ...
    def memory(self) -> list[tuple[Value, Source]]: ...


def references_of_gradient(parameter: XlaTensor) -> tuple[int, int]:
    """How often the `.grad` of a parameter is referred to, by Python and by torch."""
    gradient: Any = parameter.grad
    return sys.getrefcount(gradient), gradient._use_count()


def with_gradient(type_: TensorType, trace: DeviceTrace) -> XlaTensor:
    """A tensor whose gradient nobody else has: its references are those of such a one."""
    parameter = wrap(RootValue(type_, trace))
    parameter.grad = wrap(RootValue(type_, trace))
    return parameter


def steps_from(value: Value) -> tuple[Plan, ...]:
    """The view steps from the memory to a value."""
    steps: list[Plan] = []
    while isinstance(value, ViewValue):
        if value.reader is not None:
            raise Unfit("view", "a view that outlives it is read by more than one operator")
        steps.append(value.step)
        value = value.parent  # type: ignore[assignment]
    return tuple(reversed(steps))


def view_of(root: Value, steps: Sequence[Plan]) -> Value:
    """A value that looks into a memory by these steps."""
    value = root
    for step in steps:
        value = ViewValue(step.types[0], value, step)  # type: ignore[arg-type]
    return value


class Ends:
    """What outlives a call.

    Attributes:
        writes, gradients, returned, made, types, form: as a `Script` has them, once placed.
    """

    def __init__(self, before: Began, trace: DeviceTrace, leaves: Sequence[Any], form: Any) -> None:
        self._before = before
        self._tape = trace.tape
        self.form = form
        self.writes: list[Write] = []
        self.gradients: list[Gradient] = []
        self.returned: list[Returned] = []
        self.made: list[int] = []
        self.types: list[TensorType] = []
        # The ids of the values of each of these, and of those among them that are made.
        self._values: dict[str, list[int]] = {"writes": [], "gradients": [], "made": []}
        # How many references to a value are known, by its id.
        self._known: Counter[int] = Counter()
        for root, source in before.memory():
            if self._is_pending(root):
                self._values["writes"].append(id(root))
                self.writes.append(Write(source, -1))
        if before.parameters:
            alone = references_of_gradient(with_gradient(before.parameters[0].value.type, trace))
        for index, parameter in enumerate(before.parameters):
            is_alone = parameter.grad is None or references_of_gradient(parameter) == alone
            self.gradients.append(self._gradient(index, parameter.grad, is_alone))
        for leaf in leaves:
            self.returned.append(self._returned(leaf))

    def _is_pending(self, root: Value) -> bool:
        return root.buffer is None and root.epoch == self._tape.epoch

    def _count(self, value: Value) -> None:
        """A tensor was found that holds this value: what it refers to is known."""
        if not isinstance(value, ViewValue):
            self._known[id(value)] += 1
        step: Any = value
        while isinstance(step, ViewValue):
            self._known[id(step.root)] += 1 + (step.parent is step.root)
            step = step.parent

    def _gradient(self, index: int, gradient: Any, is_alone: bool) -> Gradient:
        was, form = self._before.had_gradient[index], self._before.gradient_forms[index]
        there = was is not None
        self._values["gradients"].append(0)
        if gradient is None:
            return Gradient(there, "dropped" if there else "kept", form)
        if gradient.__class__ is not XlaTensor:
            raise Unfit("gradient", f"a gradient is a {type(gradient).__name__}")
        root = root_of(gradient.value)
        if there and was() is gradient:
            if self._before.source_of_root(root) != Source(GRADIENT, index):
                raise Unfit("gradient", "the .grad of a parameter gets other memory")
            return Gradient(True, "kept", form)
        if gradient.requires_grad:
            raise Unfit("gradient", "gradients require gradients (create_graph=True)")
        if not self._is_pending(root) or id(root) in self._values["writes"]:
            raise Unfit("gradient", "the .grad of a parameter becomes a tensor that was there")
        if not is_alone or id(root) in self._values["gradients"]:
            raise Unfit("alive", "the function keeps the .grad of a parameter somewhere else")
        self._count(gradient.value)
        self._values["gradients"][index] = id(root)
        steps = steps_from(gradient.value)
        return Gradient(there, "new", form, types=(root.type,), steps=steps)

    def _returned(self, leaf: Any) -> Returned:
        if leaf.__class__ in PLAIN:
            return Returned("plain", leaf)
        if leaf.__class__ is not XlaTensor:
            raise Unfit(
                "result", f"it returns a {type(leaf).__name__}; return tensors of the device"
            )
        root, steps = root_of(leaf.value), steps_from(leaf.value)
        source = self._before.source_of_root(root)
        if source is not None:
            is_same = self._before.tensor_of(source) is leaf
            return Returned("same" if is_same else "view", None, source, steps)
        if not self._is_pending(root):
            raise Unfit("result", "it returns a tensor that it did not compute")
        self._count(leaf.value)
        if id(root) in self._values["gradients"]:
            index = self._values["gradients"].index(id(root))
            return Returned("view", None, Source(GRADIENT, index), steps)
        if id(root) not in self._values["made"]:
            self._values["made"].append(id(root))
            self.types.append(root.type)
        return Returned("made", self._values["made"].index(id(root)), None, steps)

    def unknown(self) -> list[tuple[TensorType, int, bool]]:
        """Pending values that outlive the call in a way that is not known.

        Returns the type and the slot of each, and whether something is known to hold it.
        """
        # Stands for a value that a tape lists and nothing else refers to.
        listed = [Value.__new__(Value)]
        values = [*live_values(self._tape), listed[0]]
        *counts, least = map(sys.getrefcount, values)
        written = set(self._values["writes"])
        return [
            (value.type, value.slot, id(value) in self._known)
            for value, count in zip(values, counts)
            if id(value) not in written and count != least + self._known[id(value)]
        ]

    def check(self, lines: Mapping[int, str]) -> None:
        """Raise Unfit where something outlives the call that a replay would not make."""
        for type_, slot, is_known in self.unknown():
            line = f", computed at {shortened(lines[slot])}," if slot in lines else ""
            how = "is kept somewhere else too" if is_known else "outlives the call"
            raise Unfit(
                "alive",
                f"a tensor {type_!r}{line} {how}; return it, or write it into a tensor that is"
                " there before",
            )

    def place(self, places: Mapping[int, int]) -> None:
        """Say which result of the program each thing gets.

        Args:
            places: by the id of a value.
        """
        found = {kind: [places.get(key, -1) for key in keys] for kind, keys in self._values.items()}
        of_new = [p for p, g in zip(found["gradients"], self.gradients) if g.outcome == "new"]
        if -1 in (*found["writes"], *of_new, *found["made"]):
            raise Unfit("result", "a tensor that outlives it is no result of its program")
        self.writes = [Write(w.source, place) for w, place in zip(self.writes, found["writes"])]
        self.gradients = [g._replace(place=p) for g, p in zip(self.gradients, found["gradients"])]
        self.made = found["made"]

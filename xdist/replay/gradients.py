"""The `.grad` of parameters at a replay: looked at before it, and given their new memory after it.

A gradient that nobody but its parameter has is made over: its tensor and its value stay, and get
the new buffer. One that somebody kept, say in a list, keeps what it holds, and a new one is made.
"""

import operator
import sys
from collections.abc import Sequence
from typing import Any

import jax
import torch

from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.run.device_trace import DeviceTrace
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.values import RootValue, Value, root_of
from torch_xdist.replay.ends import view_of, with_gradient
from torch_xdist.replay.reach import steps_of
from torch_xdist.replay.script import GRADIENT, Script

_value_of = operator.attrgetter("value")
_requires = operator.attrgetter("requires_grad")
_uses_of = torch.Tensor._use_count  # type: ignore[attr-defined]


def _leads(root: Value, steps: Sequence[Plan], value: Any) -> bool:
    """Whether a value is the memory, or looks into it by the one step."""
    return value.parent is root and value.step is steps[0] if steps else value is root


class Gradients:
    """The gradients of a script's parameters.

    Attributes:
        parameters: whose gradients a call looks at, in order, and one tensor more whose gradient is
            known to be referred to by nobody else.
    """

    def __init__(self, script: Script, trace: DeviceTrace) -> None:
        parameters = script.parameters
        self.parameters = list(parameters)
        if parameters:
            self.parameters.append(with_gradient(parameters[0].value.type, trace))
        self._without = [not one.was_there for one in script.gradients]
        self._new = [
            (index, parameters[index], one)
            for index, one in enumerate(script.gradients)
            if one.outcome == "new"
        ]
        # Whose old tensor may be made over: it is of the same form.
        self._over = [
            place
            for place, (_, _, one) in enumerate(self._new)
            if one.was == (*one.types, *one.steps) and len(one.steps) < 2
        ]
        self._indices = [self._new[place][0] for place in self._over]
        self._dropped = [
            parameters[index]
            for index, one in enumerate(script.gradients)
            if one.outcome == "dropped"
        ]
        sources = [*script.leaves, *(write.source for write in script.writes)]
        sources += [one.source for one in script.returned if one.source is not None]
        used = {source.number for source in sources if source.kind == GRADIENT}
        self._used = [
            (i, script.gradients[i].was) for i in sorted(used) if script.gradients[i].was_there
        ]
        given = {
            s.number for s, give in zip(script.leaves, script.mask) if give and s.kind == GRADIENT
        }
        self._given = [i for i in sorted(given) if script.gradients[i].outcome != "kept"]

    def now(self) -> list[Any]:
        """The gradients as they are."""
        return [parameter.grad for parameter in self.parameters]

    def differs(self, gradients: list[Any], others: set[int]) -> str:
        """What of the gradients is not as it was recorded; "" for nothing.

        Args:
            others: the ids of the values that are not to share their memory.
        """
        if [gradient is None for gradient in gradients[:-1]] != self._without:
            return "which parameters have a .grad"
        if self._used:
            why = self._used_differ(gradients, others)
            # Its variables would count as somebody who has a gradient.
            if not why and self._given and not all(self._are_alone(self._given, gradients)):
                why = "who else holds a .grad that the call takes"
            return why
        return ""

    def _used_differ(self, gradients: list[Any], others: set[int]) -> str:
        roots = set()
        for index, was in self._used:
            gradient = gradients[index]
            if gradient.__class__ is not XlaTensor or gradient.requires_grad:
                return "the class of a .grad"
            if steps_of(gradient.value) != was:
                return "the type of a .grad"
            roots.add(id(root_of(gradient.value)))
        if len(roots) != len(self._used) or not roots.isdisjoint(others):
            return "the memory of a .grad"
        return ""

    def _are_alone(self, indices: list[int], gradients: list[Any]) -> list[bool]:
        """Which of some gradients, their values and their memory nobody else refers to."""
        some = [gradients[index] for index in (*indices, -1)]
        values = [*map(_value_of, some)]
        roots = [value if value.parent is None else value.root for value in values]
        columns = [
            [*map(sys.getrefcount, some)],
            [*map(_uses_of, some)],
            [*map(sys.getrefcount, values)],
            [*map(sys.getrefcount, roots)],
            [*map(_requires, some)],
        ]
        count = len(some)
        if all([column.count(column[-1]) == count for column in columns]):
            return [True] * (count - 1)
        # A view is not in the list of the memory; and refers to that twice, where a tensor does so
        # once, and the list of the values.
        for place, (value, root) in enumerate(zip(values, roots)):
            columns[2][place] += value is not root
        *found, alone = zip(*columns)
        return [one == alone for one in found]

    def release(self, gradients: list[Any]) -> list[Any]:
        """The memory that can be made over, in the order of the new gradients; else None.

        Its buffer goes before the program makes others, as those of gradients do that a step sets
        to None.
        """
        over: list[Any] = [None] * len(self._new)
        kinds = [gradients[index].__class__ for index in self._indices]
        if not kinds or kinds.count(XlaTensor) != len(kinds):
            return over
        alone = self._are_alone(self._indices, gradients)
        for place, index, is_alone in zip(self._over, self._indices, alone):
            value, new = gradients[index].value, self._new[place][2]
            root = value if value.parent is None else value.root
            if is_alone and root.type is new.types[0] and _leads(root, new.steps, value):
                over[place] = root
                root.buffer = None
        return over

    def hand_over(
        self, results: Sequence[jax.Array], trace: DeviceTrace, over: Sequence[Any]
    ) -> None:
        """Give the parameters their new gradients."""
        for (_, parameter, one), value in zip(self._new, over):
            if value is not None:
                value.buffer, value.epoch = results[one.place], 0
                value.generation += 1
                continue
            value = RootValue(one.types[0], trace)
            value.buffer = results[one.place]
            parameter.grad = wrap(view_of(value, one.steps))
        for parameter in self._dropped:
            parameter.grad = None

    def forget(self) -> None:
        """The program failed that should have made new gradients."""
        for _, parameter, _ in self._new:
            parameter.grad = None

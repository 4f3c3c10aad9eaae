"""What a recorded call did, so that it can be done again without recording: a `Script`.

Tensors are named by where they are found at each call, never by their values of one call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.known_run import Known
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.replay.numbers import Numbers
from torch_xdist.replay.reach import Unfit

HELD, ARGUMENT, GRADIENT, UPLOAD = "held", "argument", "gradient", "upload"


class Source(NamedTuple):
    """Where a tensor, or a buffer, comes from at each call.

    Attributes:
        kind: HELD, a tensor that stays the same object; ARGUMENT; GRADIENT, the `.grad` of a
            parameter; UPLOAD, an array that the call puts on the device.
        number: of it in the script's list of these.
    """

    kind: str
    number: int


class Write(NamedTuple):
    """A tensor whose memory holds the result at `place` of the program after the call."""

    source: Source
    place: int


class Gradient(NamedTuple):
    """What a call does with the `.grad` of one parameter.

    Attributes:
        was_there: whether it had one before.
        was: the type of the memory of that, and the view steps to it.
        outcome: "kept", "dropped", or "new".
        place: of a new one's memory among the program's results.
        types: of that memory, one.
        steps: the view steps from that memory to the gradient.
    """

    was_there: bool
    outcome: str
    was: tuple[Any, ...] = ()
    place: int = -1
    types: tuple[TensorType, ...] = ()
    steps: tuple[Plan, ...] = ()


class Returned(NamedTuple):
    """One leaf of what the function returns.

    Attributes:
        kind: "plain", a value of Python; "same", a tensor that is found at each call; "made", one
            with memory of its own; "view", one that looks into the memory of one that is found.
        value: of a plain one; which memory it is of one that is made.
        source: of a tensor that is found.
        steps: the view steps from the memory to the tensor.
    """

    kind: str
    value: Any = None
    source: Source | None = None
    steps: tuple[Plan, ...] = ()


@dataclass(eq=False, slots=True)
class Script:
    """What a call did.

    Attributes:
        known: its program.
        held: tensors that stay the same objects; `parameters` are those with gradients.
        leaves: where the buffer of each leaf comes from; `mask` which of them are donated.
        uploads: what the call put on the device.
        writes: what it wrote in place; `versions` the held tensors whose version rose.
        gradients: of each parameter.
        form: torch's pytree of what was returned; `returned` its leaves, `made` the places of the
            memory that these have for themselves, `types` its types.
        numbers: what the program was fed with; `counters` CPU tensors that rose by one.
        modes: the state of the thread before.
    """

    known: Known
    held: list[XlaTensor]
    parameters: list[XlaTensor]
    leaves: list[Source]
    mask: list[bool]
    uploads: list[np.ndarray]
    writes: list[Write]
    versions: list[int]
    gradients: list[Gradient]
    form: Any
    returned: list[Returned]
    made: list[int]
    types: list[TensorType]
    numbers: Numbers
    counters: list[torch.Tensor]
    modes: tuple[Any, ...]

    def is_like(self, other: "Script") -> bool:
        """Whether another call did the same, whatever its numbers and uploads were."""
        return (
            self.known.program is other.known.program
            and self.modes == other.modes
            and all(getattr(self, name) == getattr(other, name) for name in _BY_VALUE)
            and _ids(self.held) == _ids(other.held)
            and _ids(self.counters) == _ids(other.counters)
            and self.form == other.form
            and [_exact(r) for r in self.returned] == [_exact(r) for r in other.returned]
            and self.numbers.is_alike(other.numbers)
        )

    def check_constants(self, other: "Script") -> None:
        """Raise Unfit where a call that did the same had other numbers, or uploaded others."""
        differs = self.numbers.difference(other.numbers)
        if differs is not None:
            was, now = differs.what, other.numbers.difference(self.numbers).what  # type: ignore[union-attr]
            raise Unfit(
                "number",
                f"{differs.line or 'a row'} computes with a Python number that is another one at"
                f" each call ({_shown(was)}, then {_shown(now)}); make it an argument that is a"
                " tensor of the device",
            )
        for mine, theirs in zip(self.uploads, other.uploads):
            if mine.tobytes() != theirs.tobytes():
                raise Unfit(
                    "upload",
                    f"the function puts an array of shape {mine.shape} on the device that has other"
                    " values at each call; make it an argument that is on the device",
                )


_BY_VALUE = ("leaves", "mask", "writes", "versions", "gradients", "made", "types")


def _ids(things: Sequence[Any]) -> list[int]:
    return [*map(id, things)]


def _exact(returned: Returned) -> tuple[Any, ...]:
    """A plain value by its type and its text: 1 is not True, and 0.0 not -0.0."""
    return (type(returned.value), repr(returned.value), *returned[2:], returned.kind)


def _shown(number: Any) -> str:
    if number.__class__ is str:
        return f"{float.fromhex(number):.6g}"
    return str(number)

"""Finding the plan of a torch call: any arguments, known or new.

The quick path of dispatch.py looks into `PLANS` by itself; `find` serves the calls it leaves, and
`make_plan` makes the plan of a call that was never seen.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xdist.core import cpu_only, device, recipe, shapes
from torch_xdist.core.plan import SINGLE, Number, Op, Plan, Slot, result_kinds
from torch_xdist.core.tensor import XlaTensor
from torch_xdist.core.torch_generator import TorchGenerator, XlaGenerator
from torch_xdist.core.trace import Kind, Trace
from torch_xdist.core.transfer import to_trace
from torch_xdist.core.views import overlaps, slot_of
from torch_xdist.errors import DeviceError
from torch_xdist.ops.table import SHAPED

PLANS: dict[tuple[Any, ...], Plan | None] = {}
# Stands for a call that was never seen; None for one only the CPU can compute.
NEW = object()
# Integers that are cheap to compile in and common as constants; others are runtime inputs.
STATIC_INTS = frozenset((-2, -1, 0, 1, 2))
# Called from Python, an overload takes True for the integer 1, which promotes a bool tensor. torch
# itself does not, and of those CPU torch has for bools this alone shows it.
_POWER = torch.ops.aten.pow.Tensor_Scalar
GENERATORS = (TorchGenerator, XlaGenerator)


class Found:
    """What one call's arguments were found to be; only on the slow paths."""

    __slots__ = ("args", "generator", "key", "kwargs", "numbers", "op", "slots", "trace")

    def __init__(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.op = op
        self.args = args
        self.kwargs = kwargs
        self.key: list[Any] = [op]
        self.slots: list[int] = []
        self.numbers: list[Any] = []
        self.generator: torch.Generator | None = None
        self.trace = capturing_paper((*args, *kwargs.values()))

    def take(self, value: Any, is_runtime: bool) -> None:
        """Enter one argument into the key; `is_runtime`: its numbers may be inputs."""
        cls = value.__class__
        if cls is XlaTensor:
            self.take_tensor(value)
        elif cls is list or cls is tuple:
            self.key.append((cls, len(value)))
            for part in value:
                self.take(part, self.op.runtime_lists)
        elif cls is float or cls is int:
            self.take_number(value, cls, is_runtime)
        elif isinstance(value, torch.Tensor):
            self.take_tensor(self.as_device(value))
        elif cls in GENERATORS:
            self.generator = value
            self.key.append(None)
        else:
            self.key.append((cls, value))

    def take_tensor(self, tensor: XlaTensor) -> None:
        cell = tensor.cell
        trace = self.trace
        if trace is None:
            self.trace = trace = cell.trace
        elif cell.trace is not trace:
            if trace.captures is None:
                raise mixed_devices(self.op.name, trace, cell.trace)
            cell = trace.capture(tensor)
        self.key.append(cell.kind)
        self.slots.append(slot_of(cell))

    def take_number(self, value: Any, cls: type, is_runtime: bool) -> None:
        if is_runtime and _is_input(value, cls):
            self.key.append(cls)
            self.numbers.append(value)
        else:
            self.key.append(value if cls is int else (float, value.hex()))

    def as_device(self, value: torch.Tensor) -> XlaTensor:
        if self.trace is None:
            self.trace = trace_among((*self.args, *self.kwargs.values()))
        return admit(value, self.trace)


def _is_input(value: Any, cls: type) -> bool:
    """Whether a number may be an input of the program, instead of a constant in it."""
    return cls is float or (cls is int and value not in STATIC_INTS and -(2**63) <= value < 2**63)


def admit(value: torch.Tensor, trace: Trace) -> XlaTensor:
    """A CPU tensor among device tensors: 0-d ones are moved, as torch does for cuda."""
    if value.dim() == 0 and value.device.type == "cpu":
        return to_trace(value, trace)
    raise DeviceError(not_on_device(value))


def not_on_device(value: torch.Tensor) -> str:
    """torch_xla's own sentence, and what to do."""
    return (
        f"Input tensor is not an XLA tensor: {value.type()} of shape {tuple(value.shape)} "
        f"on {value.device}; move it with .to('xla')"
    )


def mixed_devices(name: str, one: Trace, other: Trace) -> DeviceError:
    return DeviceError(
        f"{name}: expected all tensors to be on the same device, but found "
        f"xla:{one.device_index} and xla:{other.device_index}; move one with .to()"
    )


def find(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Found, Plan | None]:
    """Look at every argument of a call and find its plan, making it the first time."""
    found = Found(op, args, kwargs)
    for value in args:
        found.take(value, op.runtime)
    for name, value in kwargs.items():
        found.key.append(name)
        found.take(value, op.runtime)
    key = tuple(found.key)
    plan = PLANS.get(key, NEW)
    if plan is NEW:
        plan = PLANS[key] = make_plan(op, args, kwargs)
    return found, plan  # type: ignore[return-value]


def capturing_paper(values: Sequence[Any]) -> Trace | None:
    """The paper of a body of control flow that is being recorded, where it is among the operands.

    Operands of the user's trace then become captures of the body.
    """
    sheet = device.paper()
    if sheet is None or sheet.captures is None:
        return None
    tensors = [t for t in pytree.tree_leaves(list(values)) if t.__class__ is XlaTensor]
    return sheet if any(t.cell.trace is sheet for t in tensors) else None


def trace_among(values: Sequence[Any]) -> Trace:
    """The trace of the first device tensor of a call."""
    for value in values:
        for part in value if isinstance(value, tuple | list) else (value,):
            if part.__class__ is XlaTensor:
                return part.cell.trace
    raise DeviceError("no xla tensor among the arguments of an operator of the xla device")


def make_plan(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Plan | None:
    """Infer a call's results; None where only the CPU can compute them."""
    func = op.functional
    template = Template(op)
    metas = [template.take(a) for a in args]
    named = {name: template.take(a) for name, a in kwargs.items()}
    if func is None or cpu_only.is_wanted(func, metas):
        return None
    try:
        if str(func) in SHAPED:
            check(func, metas, named)
            result = shapes.of_lowering(str(func), metas, named)
        else:
            result = infer(func, metas, named)
    except NotImplementedError:
        return None
    kinds, structure = result_kinds(result)
    plan = Plan(
        str(func),
        op,
        [template.mark(a, op.runtime) for a in args],
        {name: template.mark(a, op.runtime) for name, a in kwargs.items()},
        template.kinds,
        kinds,
        structure,
    )
    plan.is_random = torch.Tag.nondeterministic_seeded in func.tags
    plan.is_plain = not plan.is_random and (not op.in_place or _overwrites(plan))
    return plan if recipe.prepare(plan) else None


def _overwrites(plan: Plan) -> bool:
    """Whether the result can take the place of the first operand as it is."""
    if plan.structure != SINGLE or not plan.operand_kinds or plan.kinds[0] is None:
        return False
    result, target = plan.kinds[0], plan.operand_kinds[0]
    return result.shape == target.shape and result.dtype == target.dtype and not overlaps(target)


def infer(func: Any, metas: Sequence[Any], named: dict[str, Any]) -> Any:
    """What torch's meta kernel says of the results.

    Raises torch's own error for a wrong call, and NotImplementedError where only values tell.
    """
    if func is _POWER and metas[1].__class__ is bool:
        return torch.empty_like(metas[0])
    try:
        with torch.no_grad():
            return func(*metas, **named)
    except NotImplementedError:
        raise
    except Exception as error:
        # Meta kernels written in Python have words of their own: the CPU says torch's.
        cpu_only.ask(func, metas, named)
        if "meta" in str(error).lower():
            raise NotImplementedError(str(error)) from error
        raise


def check(func: Any, metas: Sequence[Any], named: dict[str, Any]) -> None:
    """Raise torch's own error for a wrong call of an operator whose lowering tells its results."""
    try:
        func(*metas, **named)
    except NotImplementedError:
        return
    except Exception:
        with contextlib.suppress(NotImplementedError):
            cpu_only.ask(func, metas, named)


class Template:
    """Turns arguments into meta tensors, and into the marks a plan keeps of them."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.kinds: list[Kind] = []
        self.marks = 0

    def take(self, value: Any) -> Any:
        if value.__class__ is XlaTensor:
            self.kinds.append(value.cell.kind)
            return value.cell.kind.meta
        if isinstance(value, torch.Tensor):
            kind = Kind(tuple(value.shape), value.dtype, value.stride(), 0)
            self.kinds.append(kind)
            return kind.meta
        if isinstance(value, list | tuple):
            return type(value)(self.take(part) for part in value)
        if isinstance(value, torch.device):
            return torch.device("meta")
        return None if isinstance(value, TorchGenerator) else value

    def mark(self, value: Any, is_runtime: bool) -> Any:
        if isinstance(value, torch.Tensor):
            self.marks += 1
            return Slot(self.marks - 1)
        if isinstance(value, list | tuple):
            return type(value)(self.mark(part, self.op.runtime_lists) for part in value)
        cls = value.__class__
        if cls in GENERATORS:
            return None
        return Number(cls) if is_runtime and _is_input(value, cls) else value

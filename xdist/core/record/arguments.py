"""The arguments of a torch call: its key, its operands, its runtime scalars; any arguments.

The fast path of dispatch.py looks at simple calls by itself; `find` serves those it leaves. Both
make the same keys, so that a call has one plan whichever way it comes.
"""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.devices.tensor import OtherClassError, XlaTensor, of_other_class
from torch_xdist.core.devices.transfer import to_trace
from torch_xdist.core.record.inference import check_numbers, is_input, make_plan
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.trace import global_state
from torch_xdist.core.trace.operators import Op
from torch_xdist.core.trace.plans import PLANS, CpuOnly, Plan
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.values import Value
from torch_xdist.errors import DeviceError

_plans = PLANS.plans
# What lists of sizes and dims hold.
SIZES = (int, bool)

# Their indices may be on the CPU, as torch lets them be for cuda.
INDEXING = ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default")
# One of the two operands of these may be on the CPU: torch_xla copies it to the device. One that
# needs a gradient may not: the gradient would be on the device. Lengths and targets of a CTC loss
# may be there as torch lets them be for cuda.
_TAKES_CPU = frozenset(
    f"aten.{name}{place}.{overload}"
    for name in "add sub rsub mul div fmod bitwise_and bitwise_or bitwise_xor".split()
    for place in ("", "_")
    for overload in ("Tensor", "Tensor_mode")
) | {
    "aten.pow.Tensor_Tensor",
    "aten.pow_.Tensor",
    "aten._ctc_loss.Tensor",
    "aten._ctc_loss_backward.Tensor",
}


class CallArguments:
    """What the arguments of one call are; only on the slow paths.

    Attributes:
        key: of the plan.
        operands: the values of its tensors.
        scalars: its runtime scalars.
        generator: of a random operator, where one was given.
        trace: where it is recorded; None where no device tensor is among them.
    """

    __slots__ = ("args", "generator", "key", "kwargs", "op", "operands", "scalars", "trace")

    def __init__(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.op = op
        self.args = args
        self.kwargs = kwargs
        self.key: list[Any] = [op]
        self.operands: list[Value] = []
        self.scalars: list[Any] = []
        self.generator: torch.Generator | None = None
        self.trace: Trace | None = None

    def add(self, value: Any, is_runtime: bool) -> None:
        """Enter one argument into the key; `is_runtime`: its numbers may be inputs."""
        cls = value.__class__
        if cls is XlaTensor:
            self.add_tensor(value)
        elif cls is list and value and value[0].__class__ in SIZES and not self.op.runtime_lists:
            self.key.append((None, *value))
        elif cls is list or cls is tuple:
            self.key.append((cls, len(value)))
            for part in value:
                self.add(part, self.op.runtime_lists)
        elif cls is float or cls is int:
            self.add_number(value, cls, is_runtime)
        elif isinstance(value, torch.Tensor):
            self.add_tensor(self.moved(value))
        elif isinstance(value, torch.Generator):
            self.generator = value
            self.key.append(None)
        else:
            self.key.append((cls, value))

    def add_tensor(self, tensor: XlaTensor) -> None:
        value = tensor.value
        if self.trace is None:
            self.trace = trace_here(value.trace.device)
        elif value.trace.device is not self.trace.device:
            raise mixed_devices(self.op.name, self.trace, value.trace)
        self.key.append(value.type.at_zero or value.type)
        self.operands.append(value)

    def add_number(self, value: Any, cls: type, is_runtime: bool) -> None:
        if is_runtime and is_input(value, cls):
            self.key.append(cls)
            self.scalars.append(value)
        else:
            self.key.append(value if cls is int else (float, value.hex()))

    def moved(self, value: torch.Tensor) -> XlaTensor:
        """A CPU tensor among device tensors, on the device.

        Raises OtherClassError where it is not ours to say what it means there.
        """
        if of_other_class(value):
            raise OtherClassError
        if self.trace is None:
            self.trace = trace_here(device_among((*self.args, *self.kwargs.values())))
        if self.op.name in INDEXING and any(value is index for index in self.args[1]):
            return to_trace(value, self.trace)
        if self.op.name in _TAKES_CPU and value.device.type == "cpu" and not value.requires_grad:
            return to_trace(value, self.trace)
        return admit(value, self.trace)


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


def on_device(tensor: torch.Tensor, of: str) -> XlaTensor:
    """A tensor that must be on the device. Raises DeviceError, in the name of who asks."""
    if tensor.__class__ is not XlaTensor:
        raise DeviceError(f"{of}: {not_on_device(tensor)}")
    return tensor  # type: ignore[return-value]


def mixed_devices(name: str, one: Trace, other: Trace) -> DeviceError:
    """The error of an operator on tensors of two devices, in torch's words."""
    return DeviceError(
        f"{name}: expected all tensors to be on the same device, but found "
        f"{one.device} and {other.device}; move one with .to()"
    )


def find(
    op: Op, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[CallArguments, Plan | CpuOnly]:
    """Look at every argument of a call and find its plan, making it the first time."""
    call = CallArguments(op, args, kwargs)
    call.key.extend(kwargs)
    for value in (*args, *kwargs.values()):
        call.add(value, op.runtime)
    plan = plan_of(tuple(call.key), op, args, kwargs)
    if call.scalars and isinstance(plan, Plan):
        check_numbers(plan, call.scalars, args, kwargs)
    return call, plan


def plan_of(
    key: tuple[Any, ...], op: Op, args: Sequence[Any], kwargs: dict[str, Any]
) -> Plan | CpuOnly:
    """The plan of a call, made the first time."""
    plan = _plans.get(key)
    if plan is not None and not plan.follows_default_dtype:
        return plan
    # Its results have torch's default dtype, which may be another one by now.
    full_key = (*key, global_state.of_plan())
    if plan is not None:
        plan = _plans.get(full_key)
    if plan is None:
        plan = make_plan(op, args, kwargs)
        if plan.follows_default_dtype:
            plan = _plans.setdefault(full_key, plan)
            _plans.setdefault(key, plan)
        else:
            plan = _plans.setdefault(key, plan)
    return plan


def device_among(values: Sequence[Any]) -> Any:
    """The device of the first device tensor of a call."""
    for value in values:
        for part in value if isinstance(value, tuple | list) else (value,):
            if part.__class__ is XlaTensor:
                return part.value.trace.device
    raise DeviceError("no xla tensor among the arguments of an operator of the xla device")

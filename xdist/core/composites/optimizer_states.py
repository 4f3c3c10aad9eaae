"""What an optimizer and a gradient scaler make in the first step has values at once, and is no row.

A row that makes the zeros of a moment would be in the first step's program alone, and the second
step would compile anew all that both do.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.optim.optimizer as torch_optimizer
from torch.utils import _pytree

from torch_xdist.core.devices import transfer
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.dispatch import learn
from torch_xdist.core.run.device_trace import HERE, DeviceTrace
from torch_xdist.core.tapes.fills import Fill, give_values, take_back
from torch_xdist.core.trace import donation
from torch_xdist.core.trace.operators import Op, op_of
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.values import Value
from torch_xdist.dtypes import to_jax
from torch_xdist.progress import PROGRESS
from torch_xdist.releases import patches

_aten = torch.ops.aten
# What fills with a number: that, or the name and place it has among the arguments.
_FILLS: dict[Any, int | tuple[str, int]] = {
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
    _aten.ones_like.default: 1,
    _aten.new_ones.default: 1,
    _aten.full_like.default: ("fill_value", 1),
    _aten.new_full.default: ("fill_value", 2),
    # torch makes its `zeros`, `ones` and `full` of an empty tensor and these.
    _aten.zero_.default: 0,
    _aten.fill_.Scalar: ("value", 1),
}
_MAKERS = *_FILLS, _aten.clone.default


class _Now(threading.local):
    """What this thread does.

    Attributes:
        first: the optimizers in whose first steps it is, one within the other.
        made: what had its values at once there.
        step: of the script, in which the last of them began.
    """

    step = 0

    def __init__(self) -> None:
        self.first: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.made: list[Fill] = []


_now = _Now()


def register() -> None:
    """Look after the first step of every optimizer; called once."""
    torch_optimizer.register_optimizer_step_pre_hook(_before)
    torch_optimizer.register_optimizer_step_post_hook(_after)
    patches.wrap("torch.amp.GradScaler._lazy_init_scale_growth_tracker", _scale_at_once)


def _scale_at_once(usual: Callable[..., None]) -> Callable[..., None]:
    """The scale of a gradient scaler has its value at once, too."""

    @functools.wraps(usual)
    def begin(scaler: Any, device: torch.device) -> None:
        if device.type != "xla":
            usual(scaler, device)
            return
        usual(scaler, torch.device("cpu"))
        scaler._scale = scaler._scale.to(device)
        scaler._growth_tracker = scaler._growth_tracker.to(device)

    return begin


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not _is_new(optimizer):
        return
    _now.first.add(optimizer)
    _now.step = PROGRESS.step
    for func in _MAKERS:
        if op_of(func).general is None:
            learn(func)
        op_of(func).handler = _made_at_once
    if isinstance(HERE.trace, DeviceTrace):
        HERE.trace.before_cut = _before_cut
    # A subclass that is not ours may begin otherwise.
    is_known = optimizer.__class__ is torch.optim.SGD or hasattr(optimizer, "takes_found_inf")
    if is_known and isinstance(optimizer, torch.optim.SGD):
        _begin_momentum(optimizer)


def _is_new(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer of parameters of the device has no state yet."""
    for state in optimizer.state.values():
        # Who looked for one has left an empty dictionary.
        if not isinstance(state, dict) or state:
            return False
    groups = optimizer.param_groups
    return any(p.__class__ is XlaTensor for group in groups for p in group["params"])


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer not in _now.first:
        return
    # What is gone was no state: the later steps make it anew.
    take_back(HERE.trace, _now.made, {id(fill.value()) for fill in _now.made})
    _now.first.remove(optimizer)
    if not _now.first:
        _end()


def _end() -> None:
    _now.first.clear()
    _now.made.clear()
    for func in _MAKERS:
        op_of(func).handler = None
    if isinstance(HERE.trace, DeviceTrace):
        HERE.trace.before_cut = None


def _before_cut() -> None:
    """Values are read within a first step: what is no state by now is made anew by later ones."""
    states: set[int] = set()
    for optimizer in _now.first:
        leaves = _pytree.tree_leaves([*optimizer.state.values(), *optimizer.param_groups])
        states.update(id(leaf.value) for leaf in leaves if leaf.__class__ is XlaTensor)
    take_back(HERE.trace, _now.made, states)


def _begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """SGD takes the first gradient as its momentum, which is what it makes of zeros later on.

    Not where gradients go through its steps: through the first momentum none does.
    """
    for group in optimizer.param_groups:
        if group["momentum"] and not group["dampening"] and not group.get("differentiable"):
            for p in group["params"]:
                if p.__class__ is XlaTensor and p.grad is not None and not p.grad.is_sparse:
                    with torch.no_grad():
                        optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def _made_at_once(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Record what may make a state, and let this have its values at once, as states have them."""
    if _now.first and _now.step != PROGRESS.step:
        _end()  # A first step that raised has no end of its own.
    is_new = not op.func._schema.is_mutable or _is_empty(args[0])
    assert op.general is not None
    result = op.general(op, args, kwargs)
    trace = HERE.trace
    if not (_now.first and is_new and _is_pending(result, trace)):
        return result
    buffer = _values(op, args, kwargs, result.value)
    if buffer is not None:
        _now.made.append(give_values(result.value, buffer))
    return result


def _is_pending(tensor: Any, trace: Trace) -> bool:
    """Whether a row of a trace's tape made a tensor, on a device that is one."""
    if tensor.__class__ is not XlaTensor or trace.is_symbolic or trace.device.layout is not None:
        return False
    value, tape = tensor.value, trace.tape
    return value.parent is None and value.epoch == tape.epoch


def _is_empty(tensor: Any) -> bool:
    """Whether nothing was written to a tensor since it was made."""
    trace = HERE.trace
    if not _is_pending(tensor, trace):
        return False
    row: Any = trace.tape.entries[tensor.value.slot]
    return isinstance(row, tuple) and row[0].name == "empty"


def _values(op: Op, args: Sequence[Any], kwargs: dict[str, Any], made: Value) -> Any:
    """The values of what an operator made; None where they are not known."""
    there = made.trace.device
    if op.func is _aten.clone.default:
        source = args[0].value
        if source.parent is not None or source.buffer is None:
            return None
        return donation.copy_of(source.buffer, there.jax)
    number: Any = _FILLS[op.func]
    if isinstance(number, tuple):
        name, place = number
        number = args[place] if place < len(args) else kwargs.get(name)
    if not isinstance(number, int | float):
        return None
    try:
        one = np.array(number, to_jax(made.type.dtype))
    except (OverflowError, ValueError):  # torch has its own way with what a dtype does not hold
        return None
    return transfer.put(np.broadcast_to(one, made.type.shape), there)

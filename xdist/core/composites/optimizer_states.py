"""What an optimizer and a gradient scaler make in the first step has values at once, and is no row.

A row that makes the zeros of a moment would be in the first step's program alone, and the second
step would compile anew all that both do.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.optim.optimizer as torch_optimizer

from torch_xdist.core.devices import transfer
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.record.arguments import find
from torch_xdist.core.record.dispatch import learn, record
from torch_xdist.core.record.handlers_copy import is_elsewhere
from torch_xdist.core.run.device_trace import HERE
from torch_xdist.core.trace.operators import Op, op_of
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.values import RootValue
from torch_xdist.dtypes import to_jax
from torch_xdist.releases import patches

_aten = torch.ops.aten
_FILLS = {
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
    _aten.ones_like.default: 1,
}
_STRIDED = None, torch.strided


class _Now(threading.local):
    """Whether this thread is in the first step of an optimizer."""

    is_first = False


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
    if optimizer.state or not any(
        p.__class__ is XlaTensor for group in optimizer.param_groups for p in group["params"]
    ):
        return
    # A step that raises has no end; what is made at once after it is made all the same.
    _now.is_first = True
    for func in _FILLS:
        if op_of(func).general is None:
            learn(func)
        op_of(func).handler = _made_at_once
    if optimizer.__class__ is torch.optim.SGD:
        _begin_momentum(optimizer)


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if _now.is_first:
        _now.is_first = False
        for func in _FILLS:
            op_of(func).handler = None


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
    is_here = not is_elsewhere(args[0], kwargs.get("device"))
    is_plain = is_here and kwargs.get("layout") in _STRIDED
    if not _now.is_first or HERE.symbolic is not None or not is_plain:
        return record(op, args, kwargs)
    call, plan = find(op, args, kwargs)
    trace = call.trace
    if not isinstance(plan, Plan) or trace is None or trace.device.layout is not None:
        return record(op, args, kwargs)
    type_ = plan.types[0]
    assert type_ is not None
    value = RootValue(type_, trace)
    filled = np.broadcast_to(np.array(_FILLS[op.func], to_jax(type_.dtype)), type_.shape)
    value.buffer = transfer.put(filled, trace.device)  # type: ignore[assignment]
    return wrap(value)

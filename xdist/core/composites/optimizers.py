"""torch's optimizers on the device: grouped updates, and Adam's whole update as one row.

torch chooses its foreach forms by a list of devices and tensor types; ours are entered there.
Adam and AdamW take the most host time of a small step, so `_multi_tensor_adam` is served by one
row for all parameters; what the row does not cover goes to torch's own function.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.optim.adam as torch_adam
import torch.optim.optimizer as torch_optimizer

from torch_xdist.core.alias.views import write
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.trace import watch
from torch_xdist.core.trace.plans import NOTHING, PLANS, Param, Plan, ScalarParam
from torch_xdist.core.trace.tensor_types import TensorType, dense_type
from torch_xdist.core.trace.values import Value
from torch_xdist.ops import forms
from torch_xdist.releases import patches

_multi_tensor_adam = torch_adam._multi_tensor_adam
# What the numbers of an update are made of, beside the step.
_FED = ("lr", "betas", "eps", "weight_decay")
# Elements of a parameter: a GPU updates so many in some microseconds.
_LARGE = 1 << 18


def register() -> None:
    """Enter the device into torch's lists; called once."""
    for module in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
        patches.wrap(f"{module}._get_foreach_kernels_supported_devices", _extended)
        patches.wrap(f"{module}._get_fused_kernels_supported_devices", _extended)
        patches.extend(f"{module}._foreach_supported_types", [XlaTensor])
    patches.replace("torch.optim.*._get_capturable_supported_devices", capturable_devices)
    patches.replace("torch.optim.adam._multi_tensor_adam", multi_tensor_adam)


_known_capturable = torch_optimizer._get_capturable_supported_devices


# torch.distributed.optim scripts the optimizers: TorchScript must be able to compile this.
def capturable_devices(supports_xla: bool = True) -> list[str]:
    """torch's list of devices whose step counters may live on the device, and ours."""
    devices = _known_capturable(supports_xla)
    devices.append("xla")
    devices.append("lazy")
    return devices


def _extended(known: Any) -> Any:
    def supported_devices(*args: Any, **kwargs: Any) -> list[str]:
        # torch's C++ grouping names the device underneath.
        return [*known(*args, **kwargs), "xla", "lazy"]

    supported_devices.__doc__ = known.__doc__
    return supported_devices


def multi_tensor_adam(
    params: list[Any],
    grads: list[Any],
    exp_avgs: list[Any],
    exp_avg_sqs: list[Any],
    max_exp_avg_sqs: list[Any],
    state_steps: list[Any],
    grad_scale: Any,
    found_inf: Any,
    **options: Any,
) -> None:
    """torch's `_multi_tensor_adam`, as one row per group of equal step counts."""
    lists = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    if not _is_ours(lists, state_steps, options):
        _multi_tensor_adam(*lists, state_steps, grad_scale, found_inf, **options)
        return
    # Of a tensor and with alpha: torch makes a tensor of a number anew for every step.
    torch._foreach_add_(state_steps, torch.tensor(1.0, device="cpu"), alpha=1.0)
    for step, members in _by_step(state_steps).items():
        counters = state_steps
        chosen: Sequence[list[Any]] = lists
        if len(members) != len(params):
            chosen = [[x[i] for i in members] if x else [] for x in lists]
            counters = [state_steps[i] for i in members]
        slot = _record(chosen, step, options)
        if watch.HERE.watch is not None and slot is not None:
            update = watch.Update(slot, chosen[0], counters, _FED, _numbers_of_group)
            watch.HERE.watch.updates.append(update)


def _is_ours(lists: Sequence[list[Any]], steps: list[Any], options: dict[str, Any]) -> bool:
    if not steps or options["capturable"] or options["differentiable"] or options["has_complex"]:
        return False
    if isinstance(options["lr"], torch.Tensor) or torch.compiler.is_compiling():
        return False
    if any(isinstance(options[name], torch.Tensor) for name in ("beta1", "beta2")):
        return False
    return XlaTensor not in [t.__class__ for t in steps] and are_alike(lists)


def are_alike(lists: Sequence[list[Any]]) -> bool:
    """Whether all of these, of which there are some, are tensors of one device of ours."""
    classes = [t.__class__ for x in lists for t in x]
    if not classes or classes.count(XlaTensor) != len(classes):
        return False
    traces = [t.value.trace for x in lists for t in x]
    # Nearly always one trace; its devices tell otherwise.
    return traces.count(traces[0]) == len(traces) or len({trace.device for trace in traces}) == 1


def _by_step(steps: list[torch.Tensor]) -> Mapping[float, Sequence[int]]:
    """The members of each step count."""
    counts = [step.item() for step in steps]
    if counts.count(counts[0]) == len(counts):
        return {counts[0]: range(len(counts))}
    groups: dict[float, list[int]] = {}
    for index, count in enumerate(counts):
        groups.setdefault(count, []).append(index)
    return groups


def _numbers(options: Mapping[str, Any], step: float) -> tuple[float, ...]:
    """What an update is fed with: whatever a schedule may write is an input of the program."""
    lr, decay, decoupled = (
        options["lr"], options["weight_decay"], options["decoupled_weight_decay"]
    )  # fmt: skip
    beta1, beta2 = options["beta1"], options["beta2"]
    return (
        -1.0 if options["maximize"] else 1.0,
        float(1 - lr * decay if decoupled else decay),
        float(1 - beta1),
        float(beta2),
        float(1 - beta2),
        float(options["eps"]),
        float(lr / (1 - beta1**step)),
        math.sqrt(1 - beta2**step),
    )


def _numbers_of_group(group: Mapping[str, Any], step: float) -> tuple[float, ...]:
    """The same, of a group of Adam's or AdamW's parameters as it is now."""
    beta1, beta2 = group["betas"]
    return _numbers({**group, "beta1": beta1, "beta2": beta2}, step)


def _record(lists: Sequence[list[Any]], step: float, options: dict[str, Any]) -> int | None:
    """Record one update; returns the slot of its row where that is all there is of it."""
    form = _Form(
        len(lists[0]), options["amsgrad"], bool(options["weight_decay"]),
        options["decoupled_weight_decay"],
    )  # fmt: skip
    scalars = _numbers(options, step)
    values = [t.value for x in lists for t in x]
    types = tuple([value.type for value in values])
    plan = PLANS.find(("adam", form, types), lambda: _make_plan(form, types, len(scalars)))
    count = form.members
    targets = [*values[:count], *values[2 * count :]]
    return update_in_place(plan, values, scalars, targets, [lists[0], *lists[2:]])


def update_in_place(
    plan: Plan,
    values: Sequence[Value],
    scalars: tuple[float, ...],
    targets: Sequence[Value],
    written: Sequence[list[Any]],
) -> int | None:
    """Record a row that writes `targets`, the values of the tensors in `written`.

    Returns its slot, or None where other rows write what it gives.
    """
    trace = trace_here(values[0].trace.device)
    slot: int | None = None
    if trace.is_symbolic or any([target.parent is not None for target in targets]):
        for target, result in zip(targets, trace.record(plan, values, scalars)):
            write(target, result)  # type: ignore[arg-type]
    else:
        trace.record_into(plan, values, scalars, targets)
        slot = targets[0].slot
    torch.autograd.graph.increment_version([t for x in written for t in x])
    return slot


class _Form(NamedTuple):
    """What makes one update another program than the next.

    Attributes:
        members: how many parameters.
    """

    members: int
    amsgrad: bool
    decays: bool
    decoupled: bool


def _make_plan(form: _Form, types: tuple[TensorType, ...], scalars: int) -> Plan:
    update = functools.partial(_update, form)
    return make_plan(f"adam{tuple(form)}", types, form.members, scalars, update)


def make_plan(
    name: str, types: Sequence[TensorType], members: int, scalars: int, update: Callable[..., Any]
) -> Plan:
    """The plan of an update of lists of `members`, of which the second, gradients, is only read."""
    written = [*types[:members], *types[2 * members :]]
    outs = [dense_type(type_.shape, type_.dtype) for type_ in written]
    args = (*map(Param, range(len(types))), *[ScalarParam(float)] * scalars)
    return Plan(name, None, args, {}, types, outs, NOTHING, lowering=update)


def _update(form: _Form, *args: Any) -> list[Any]:
    """The update of every parameter: params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, one by one."""
    arrays, scalars = args[:-8], args[-8:]
    alone = _alone(scalars) if forms.chosen().updates_apart else None

    def numbers_of(parameter: Any) -> Sequence[Any]:
        return alone if alone and _is_large(parameter) else scalars

    return update_each(functools.partial(_update_one, form), arrays, form.members, numbers_of)


def update_each(
    update_one: Callable[..., Any],
    arrays: Sequence[Any],
    members: int,
    numbers_of: Callable[[Any], Sequence[Any]],
) -> list[Any]:
    """What `update_one(arrays of a member, its numbers)` gives for each, list by list."""
    lists = [arrays[i : i + members] for i in range(0, len(arrays), members)]
    # Traced once for all parameters of a shape, whose equations JAX then copies.
    update = jax.jit(update_one, inline=True)
    updated = [update(member, numbers_of(member[0])) for member in zip(*lists)]
    return [value for result in zip(*updated) for value in result]


def _alone(scalars: Sequence[Any]) -> Sequence[Any]:
    """The scalars as arrays of their own: XLA does not make one loop of two for them.

    Out of one array, which is what a program is fed with, it would: of as many large parameters as
    its kernels take, and those are slower than one for each.
    """
    return jax.lax.optimization_barrier([x.astype(np.float32) for x in scalars])


def _is_large(parameter: Any) -> bool:
    """Whether what is computed in float32 takes longer than it takes to launch it."""
    return parameter.size >= _LARGE and parameter.dtype.itemsize <= 4


def _update_one(form: _Form, members: Sequence[Any], scalars: Sequence[Any]) -> list[Any]:
    """One parameter, in the order of operations of torch's foreach form."""
    dtype = members[0].dtype
    compute = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    p, g, m, v, *most = (x.astype(compute) for x in members)
    sign, decay, lerp, beta2, rest2, eps, rate, root_correction = (
        x.astype(compute) for x in scalars
    )
    g = g * sign
    if form.decays and form.decoupled:
        p = p * decay
    elif form.decays:
        g = g + decay * p
    m = m + lerp * (g - m)
    v = v * beta2 + rest2 * g * g
    if form.amsgrad:
        most = [jnp.maximum(most[0], v)]
    root = jax.lax.sqrt(most[0] if form.amsgrad else v)
    p = p - rate * m / (root / root_correction + eps)
    return [p, m, v, *most]

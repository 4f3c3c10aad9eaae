"""torch's optimizers on the device: grouped updates, and Adam's whole update as one row.

torch chooses its foreach forms by a list of devices and tensor types; ours are entered there.
Adam and AdamW take the most host time of a small step, so `_multi_tensor_adam` is served by one
row for all parameters; what the row does not cover goes to torch's own function.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.optim.adam as torch_adam
import torch.optim.optimizer as torch_optimizer
import torch.utils._foreach_utils as foreach_utils

from torch_xdist.core.bind import bind
from torch_xdist.core.plan import NOTHING, Number, Plan, Slot
from torch_xdist.core.tensor import XlaTensor
from torch_xdist.core.trace import Kind, dense_kind
from torch_xdist.core.views import slot_of, write

_multi_tensor_adam = torch_adam._multi_tensor_adam
_PLANS: dict[tuple[Any, ...], Plan] = {}


def register() -> None:
    """Enter the device into torch's lists; called once."""
    for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
        known = getattr(foreach_utils, name)
        extended = _extended(known)
        setattr(foreach_utils, name, extended)
        if hasattr(torch_optimizer, name):
            setattr(torch_optimizer, name, extended)
    _extend_capturable()
    torch_optimizer._foreach_supported_types.append(XlaTensor)  # type: ignore[arg-type]
    foreach_utils._foreach_supported_types.append(XlaTensor)
    torch_adam._multi_tensor_adam = multi_tensor_adam


def _extend_capturable() -> None:
    """Replace the function in every optimizer's module that imported it by name."""
    for module in [m for n, m in sys.modules.items() if n.startswith("torch.optim.")]:
        if hasattr(module, "_get_capturable_supported_devices"):
            module._get_capturable_supported_devices = capturable_devices  # type: ignore[attr-defined]


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
    torch._foreach_add_(state_steps, 1.0)
    for step, members in _by_step(state_steps).items():
        if len(members) == len(params):
            _record(lists, step, options)
        else:
            _record([[x[i] for i in members] if x else [] for x in lists], step, options)


def _is_ours(lists: Sequence[list[Any]], steps: list[Any], options: dict[str, Any]) -> bool:
    if not steps or options["capturable"] or options["differentiable"] or options["has_complex"]:
        return False
    if isinstance(options["lr"], torch.Tensor) or torch.compiler.is_compiling():
        return False
    if any(isinstance(options[name], torch.Tensor) for name in ("beta1", "beta2")):
        return False
    trace = getattr(lists[0][0], "cell", None) and lists[0][0].cell.trace
    if trace is None or any(s.__class__ is XlaTensor for s in steps):
        return False
    return all(t.__class__ is XlaTensor and t.cell.trace is trace for x in lists for t in x)


def _by_step(steps: list[torch.Tensor]) -> dict[float, list[int]]:
    """The members of each step count; reading them together is one call."""
    groups: dict[float, list[int]] = {}
    for index, step in enumerate(torch.stack(steps).tolist()):
        groups.setdefault(step, []).append(index)
    return groups


def _record(lists: Sequence[list[Any]], step: float, options: dict[str, Any]) -> None:
    static = (
        options["amsgrad"],
        options["beta1"],
        options["beta2"],
        options["weight_decay"],
        options["eps"],
        options["maximize"],
        options["decoupled_weight_decay"],
    )
    cells = [t.cell for x in lists for t in x]
    kinds = tuple([cell.kind for cell in cells])
    plan = _PLANS.get((static, kinds))
    if plan is None:
        plan = _PLANS[static, kinds] = _make_plan(static, kinds, len(lists[0]))
    trace = cells[0].trace
    epoch = trace.epoch
    slots = [c.slot if c.epoch == epoch and c.parent is None else slot_of(c) for c in cells]
    trace.floats += (
        options["lr"],
        1 - options["beta1"] ** step,
        math.sqrt(1 - options["beta2"] ** step),
    )
    trace.rows.append((plan, *slots))
    slot = trace.next_slot
    trace.next_slot = slot + len(plan.kinds)
    count = len(lists[0])
    for index, cell in enumerate([*cells[:count], *cells[2 * count :]]):
        write(cell, slot + index)


def _make_plan(static: tuple[Any, ...], kinds: tuple[Kind, ...], count: int) -> Plan:
    written = [*kinds[:count], *kinds[2 * count :]]
    outs = [dense_kind(kind.shape, kind.dtype) for kind in written]
    marks = [Slot(i) for i in range(len(kinds))]
    args = (*marks, Number(float), Number(float), Number(float))
    plan = Plan(f"adam{static}", None, args, {}, kinds, outs, NOTHING)
    return bind(plan, _Update(count, *static))


class _Update:
    """The update of every parameter, in the order of operations of torch's foreach form."""

    def __init__(
        self,
        count: int,
        amsgrad: bool,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        maximize: bool,
        decoupled: bool,
    ) -> None:
        self.count = count
        self.amsgrad = amsgrad
        self.beta1, self.beta2 = beta1, beta2
        self.weight_decay = weight_decay
        self.eps = eps
        self.maximize = maximize
        self.decoupled = decoupled

    def __call__(self, *args: Any) -> list[Any]:
        *arrays, lr, correction1, correction2_sqrt = args
        n = self.count
        lists = [arrays[i : i + n] for i in range(0, len(arrays), n)]
        results: list[list[Any]] = [[] for _ in range(len(lists) - 1)]
        for members in zip(*lists):
            for result, value in zip(results, self.one(members, lr, correction1, correction2_sqrt)):
                result.append(value)
        return [value for result in results for value in result]

    def one(self, members: Any, lr: Any, correction1: Any, correction2_sqrt: Any) -> list[Any]:
        dtype = members[0].dtype
        compute = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
        p, g, m, v, *most = (x.astype(compute) for x in members)
        if self.maximize:
            g = -g
        if self.weight_decay and self.decoupled:
            p = p * (1 - lr * self.weight_decay).astype(compute)
        elif self.weight_decay:
            g = g + self.weight_decay * p
        m = m + (1 - self.beta1) * (g - m)
        v = v * self.beta2 + (1 - self.beta2) * g * g
        if self.amsgrad:
            most = [jnp.maximum(most[0], v)]
        root = jax.lax.sqrt(most[0] if self.amsgrad else v)
        denominator = root / correction2_sqrt.astype(compute) + self.eps
        p = p - (lr / correction1).astype(compute) * m / denominator
        return [p, m, v, *most]

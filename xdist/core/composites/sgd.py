"""SGD's whole update as one row for all parameters.

torch makes it of up to five grouped operators, each of which reads its lists again: a step of a
ResNet-18's 62 parameters took 0.8 ms of the host, and takes 0.3 (docs/benchmarks.md).
`_multi_tensor_sgd` is served by one row; what that does not cover goes to torch's own function.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.optim.sgd as torch_sgd

from torch_xdist.core.composites.optimizers import (
    are_alike,
    make_plan,
    update_each,
    update_in_place,
)
from torch_xdist.core.trace import watch
from torch_xdist.core.trace.plans import PLANS, Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.values import Value
from torch_xdist.ops.table import LOWERINGS
from torch_xdist.releases import patches

_multi_tensor_sgd = torch_sgd._multi_tensor_sgd
# What the numbers of an update are made of.
_FED = ("lr", "momentum", "dampening", "weight_decay")
_NUMBERS = 4


def register() -> None:
    """Let SGD's grouped update arrive whole; called once."""
    patches.replace("torch.optim.sgd._multi_tensor_sgd", multi_tensor_sgd)


def multi_tensor_sgd(
    params: list[Any],
    grads: list[Any],
    momentum_buffer_list: list[Any],
    grad_scale: Any,
    found_inf: Any,
    **options: Any,
) -> None:
    """torch's `_multi_tensor_sgd`, as one row."""
    lists = [params, grads, momentum_buffer_list] if options["momentum"] else [params, grads]
    values = [t.value for x in lists for t in x] if _is_ours(lists, options) else []
    types = tuple([value.type for value in values])
    if not values or not _fit(types, len(params)):
        _multi_tensor_sgd(params, grads, momentum_buffer_list, grad_scale, found_inf, **options)
        return
    slot = _record(lists, values, types, options)
    if watch.HERE.watch is not None and slot is not None:
        update = watch.Update(slot, params, (), _FED, _numbers_of_group)
        watch.HERE.watch.updates.append(update)


def _is_ours(lists: Sequence[list[Any]], options: Mapping[str, Any]) -> bool:
    """Whether the row serves; a momentum that is not there yet is made by torch's function."""
    if options["has_sparse_grad"] or torch.compiler.is_compiling():
        return False
    return not any(isinstance(options[name], torch.Tensor) for name in _FED) and are_alike(lists)


def _fit(types: Sequence[TensorType], members: int) -> bool:
    """Whether gradients and momenta are of the shapes and dtypes of their parameters."""
    params, *others = (types[i : i + members] for i in range(0, len(types), members))
    # The same objects, but where a memory format or a loaded state has made others.
    return all(some == params or _said(some) == _said(params) for some in others)


def _said(types: Sequence[TensorType]) -> list[Any]:
    return [(t.shape, t.dtype) for t in types]


class _Form(NamedTuple):
    """What makes one update another program than the next.

    Attributes:
        members: how many parameters.
    """

    members: int
    decays: bool
    has_momentum: bool
    dampens: bool
    nesterov: bool
    maximize: bool


def _numbers(options: Mapping[str, Any]) -> tuple[float, ...]:
    """What an update is fed with: whatever a schedule may write is an input of the program."""
    momentum, dampening = options["momentum"], options["dampening"]
    decay, rate = options["weight_decay"], options["lr"]
    return float(decay), float(momentum), float(1 - dampening), float(-rate)


def _numbers_of_group(group: Mapping[str, Any], step: float) -> tuple[float, ...]:
    """The same, of a group of SGD's parameters as it is now; steps do not count."""
    return _numbers(group)


def _record(
    lists: Sequence[list[Any]],
    values: Sequence[Value],
    types: tuple[TensorType, ...],
    options: Mapping[str, Any],
) -> int | None:
    """Record one update; returns the slot of its row where that is all there is of it."""
    count = len(lists[0])
    form = _Form(
        count, bool(options["weight_decay"]), len(lists) > 2, bool(options["dampening"]),
        options["nesterov"], options["maximize"],
    )  # fmt: skip
    plan = PLANS.find(("sgd", form, types), lambda: _make_plan(form, types))
    return update_in_place(
        plan, values, _numbers(options), [*values[:count], *values[2 * count :]], lists[::2]
    )


def _make_plan(form: _Form, types: tuple[TensorType, ...]) -> Plan:
    update = functools.partial(_update, form)
    return make_plan(f"sgd{tuple(form)}", types, form.members, _NUMBERS, update)


def _update(form: _Form, *args: Any) -> list[Any]:
    """The update of every parameter: params, momenta, one by one."""
    arrays, numbers = args[:-_NUMBERS], args[-_NUMBERS:]
    update = functools.partial(_update_one, form)
    return update_each(update, arrays, form.members, lambda parameter: numbers)


def _update_one(form: _Form, members: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    """One parameter, by the operators that torch's grouped form is made of, each rounded."""
    decay, momentum, rest, rate = numbers
    p, g, *momenta = ([x] for x in members)
    if form.maximize:
        g = _neg(g)
    if form.decays:
        g = _add(g, p, alpha=decay)
    if form.has_momentum:
        buffer = _add(_scaled(momenta[0], momentum), g, alpha=rest if form.dampens else 1)
        g = _add(g, buffer, alpha=momentum) if form.nesterov else buffer
        momenta = [buffer]
    return [x for (x,) in (_add(p, g, alpha=rate), *momenta)]


_add = LOWERINGS["aten._foreach_add.List"]
_scaled = LOWERINGS["aten._foreach_mul.Scalar"]
_neg = LOWERINGS["aten._foreach_neg.default"]

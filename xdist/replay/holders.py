"""What modules and optimizers hold: their tensors, hooks and numbers, as conditions."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.replay.guard import PLAIN, Bulk, Check

# What every module has beside its own attributes; none of the rest is read when it is called.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MEMBERS = ("_parameters", "_buffers", "_modules")
_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
_HOOKS_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_OF_EVERY_OPTIMIZER = frozenset(("defaults", "param_groups", "state", "step"))
_PACKAGES = ("torch", "torch_xdist", "torch_xla")
# A dict that stays the same object, and a key in it: where something is found.
At = tuple[dict[str, Any], str] | None
# For what is compared with the dict that it is in.
COVERED: At = ({}, "")


class Into(Protocol):
    """Where conditions are entered: a `Reach`."""

    names: Any
    attributes: set[str]
    checks: list[Check]
    hyperparameters: dict[tuple[int, str], list[Check]]
    optimizers: dict[int, tuple[torch.optim.Optimizer, str]]
    counts: dict[int, tuple[torch.Tensor, str]]

    def check(
        self, holds: str, now: str, was: str, where: str, kind: str, bulk: Bulk | None = None
    ) -> None: ...
    def same(
        self, thing: Any, expression: str, where: str, kind: str = "object", at: At = None
    ) -> None: ...
    def value(self, thing: Any, expression: str, where: str, at: At = None) -> None: ...
    def hold(self, tensor: XlaTensor, where: str, *, may_require_grad: bool = True) -> None: ...
    def hooks(
        self,
        hooks: Mapping[int, Any] | None,
        expression: str,
        where: str,
        bulk: Bulk | None = None,
    ) -> None: ...
    def methods(self, kind: type, where: str) -> None: ...


def is_of_torch(kind: type) -> bool:
    """Whether a class is torch's or this project's."""
    return kind.__module__.partition(".")[0] in _PACKAGES


def enter_module(into: Into, module: nn.Module, where: str) -> None:
    """The members, hooks, mode and attributes of a module, and those of its children."""
    state = module.__dict__
    base = into.names.of(state)
    # One more is an attribute in the place of a method, such as `forward`.
    _enter_length(into, state, f"attributes of {where}", "object")
    mode, was = f"{base}['training']", str(module.training)
    bulk = Bulk("item", state, "training", module.training)
    into.check(f"{mode} is {was}", mode, was, f"{where}.training", "mode", bulk)
    for name in _HOOKS:
        hooks = state[name]
        into.same(hooks, f"{base}[{name!r}]", f"hooks of {where}", "hook", (state, name))
        into.hooks(hooks, into.names.of(hooks), where, Bulk("empty", hooks))
    kind = type(module)
    into.same(kind.forward, f"{into.names.of(kind)}.forward", f"{kind.__name__}.forward")
    into.methods(kind, where)
    for name in _MEMBERS:
        members = state[name]
        into.same(members, f"{base}[{name!r}]", f"the members of {where}", at=(state, name))
        _enter_members(into, members, where)
    for name, value in [*state.items()]:
        is_read = name in into.attributes or is_of_torch(type(module))
        if name not in _OF_EVERY_MODULE and is_read:
            into.value(value, f"{base}[{name!r}]", f"{where}.{name}", (state, name))


def _enter_length(into: Into, thing: Any, where: str, kind: str) -> None:
    name, was = into.names.of(thing), len(thing)
    bulk = Bulk("length", thing, None, was)
    into.check(f"len({name}) == {was}", f"len({name})", str(was), where, kind, bulk)


def _enter_members(into: Into, members: dict[str, Any], where: str) -> None:
    """The keys of a dict and its values, which are looked into as well."""
    base = into.names.of(members)
    keys = into.names.of([*members])
    now, was = f"[*{base}]", f"{len(members)} of them"
    bulk = Bulk("members", members, None, dict(members))
    into.check(f"{now} == {keys}", f"len({base})", was, f"members of {where}", "object", bulk)
    for name, member in members.items():
        into.value(member, f"{base}[{name!r}]", f"{where}.{name}", COVERED)


def enter_optimizer(into: Into, optimizer: torch.optim.Optimizer, where: str) -> None:
    """The groups, hyperparameters, states and hooks of an optimizer."""
    into.optimizers[id(optimizer)] = optimizer, where
    state = optimizer.__dict__
    base = into.names.of(state)
    _enter_length(into, state, f"attributes of {where}", "object")
    if "step" in state:  # A scheduler's.
        into.same(state["step"], f"{base}['step']", f"{where}.step")
    for name in _HOOKS_OF_OPTIMIZERS:
        into.hooks(state[name], f"{base}[{name!r}]", where)
    groups = optimizer.param_groups
    into.same(groups, f"{base}['param_groups']", f"{where}.param_groups", "optimizer")
    _enter_length(into, groups, f"{where}.param_groups", "optimizer")
    for index, group in enumerate(groups):
        expression = f"{into.names.of(groups)}[{index}]"
        _enter_group(into, group, expression, f"{where}.param_groups[{index}]")
    _enter_states(into, optimizer, f"{base}['state']", f"{where}.state")
    if not is_of_torch(type(optimizer)):
        into.methods(type(optimizer), where)
        for name in sorted(into.attributes & state.keys() - _OF_EVERY_OPTIMIZER):
            into.value(state[name], f"{base}[{name!r}]", f"{where}.{name}", (state, name))


def _enter_group(into: Into, group: dict[str, Any], expression: str, where: str) -> None:
    into.same(group, expression, where, "optimizer")
    base = into.names.of(group)
    members = group["params"]
    into.same(members, f"{base}['params']", f"{where}['params']", "optimizer")
    _enter_all(into, members, into.names.of(members), f"{where}['params']")
    for index, member in enumerate(members):
        if member.__class__ is XlaTensor:
            into.hold(member, f"{where}['params'][{index}]")
    for name, value in group.items():
        if name != "params":
            before = len(into.checks)
            into.value(value, f"{base}[{name!r}]", f"{where}[{name!r}]", (group, name))
            into.hyperparameters[id(group), name] = into.checks[before:]


def _enter_all(into: Into, things: Any, expression: str, where: str) -> None:
    """Things in a list, or the values of a dict, are the same ones."""
    for thing in things:
        into.names.of(thing)
    found = [*map(id, things)]
    into.check(f"ids({expression}) == {found}", f"len({expression})", "others", where, "optimizer")


def _enter_states(
    into: Into, optimizer: torch.optim.Optimizer, expression: str, where: str
) -> None:
    states = optimizer.state
    into.same(states, expression, where, "optimizer")
    _enter_all(into, states.values(), f"{into.names.of(states)}.values()", where)
    for state in states.values():
        if not isinstance(state, dict):
            continue
        base = into.names.of(state)
        bulk = Bulk("members", state, None, dict(state))
        keys = into.names.of([*state])
        into.check(
            f"[*{base}] == {keys}", f"len({base})", str(len(state)), where, "optimizer", bulk
        )
        for name, value in state.items():
            told = f"{where}[...][{name!r}]"
            at = f"{base}[{name!r}]"
            if isinstance(value, torch.Tensor):
                into.same(value, at, told, "optimizer", COVERED)
            if value.__class__ is XlaTensor:
                into.hold(value, told, may_require_grad=False)
            elif isinstance(value, torch.Tensor):
                into.counts[id(value)] = value, told
            elif value.__class__ in PLAIN:
                into.value(value, at, told)

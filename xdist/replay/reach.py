"""All that a call may depend on, found from its function and its arguments, as conditions.

Code says by name what it reads (`code`): globals, variables of enclosing functions, attributes.
What these are decides how they are compared: plain values by value, containers by their elements,
modules, optimizers and tensors by identity, with all that a module or an optimizer holds. Tensors
of the device that stay the same object are `held`; those in the arguments are others at each call.
"""

import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.trace.values import ViewValue
from torch_xdist.replay import code, holders
from torch_xdist.replay.guard import PLAIN, Bulk, Check, Names, equals, is_odd, told
from torch_xdist.replay.holders import COVERED, At

_LISTS = (list, tuple, deque, torch.Size)
_DICTS = (dict, OrderedDict, defaultdict)
_WHOLE = (type, ModuleType, BuiltinFunctionType, FunctionType, Enum, torch.dtype, torch.device)
# What has more elements is no parameter of a step: a data set, a vocabulary.
_MOST_ELEMENTS = 512
_DEEPEST = 16
# Code that is found names what is looked into, where more code may be.
_PASSES = 6


class Argument(NamedTuple):
    """A tensor of the device among the arguments: Python for it, and the tensor of this call."""

    expression: str
    tensor: XlaTensor
    where: str


class Unfit(Exception):
    """A call cannot be replayed: what kind of reason it is, and the reason in words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class Reach:
    """What a call depends on.

    Attributes:
        checks: the conditions that can be told from Python's objects.
        names: of the objects in them.
        held: tensors of the device by their id, each with its name in the user's words.
        arguments: tensors of the device among the arguments, in the order they are found.
        optimizers: those that were found, by id.
        hyperparameters: the conditions of each entry of an optimizer's groups.
        counts: CPU tensors in the state of optimizers, by id: a step may change them.
        attributes: names of attributes that code was found to read.
        is_in_arguments: whether it is looked at arguments, where each call has other tensors.
    """

    def __init__(self, attributes: Set[str] = frozenset()) -> None:
        self.checks: list[Check] = []
        self.names = Names()
        self.held: dict[int, tuple[XlaTensor, str]] = {}
        self.arguments: list[Argument] = []
        self.optimizers: dict[int, tuple[torch.optim.Optimizer, str]] = {}
        self.hyperparameters: dict[tuple[int, str], list[Check]] = {}
        self.counts: dict[int, tuple[torch.Tensor, str]] = {}
        self.attributes = set(attributes)
        self._seen: set[int] = set()
        self.is_in_arguments = False
        self._depth = 0

    def check(
        self, holds: str, now: str, was: str, where: str, kind: str, bulk: Bulk | None = None
    ) -> None:
        """Enter a condition."""
        self.checks.append(Check(holds, now, was, where, kind, bulk))

    def same(
        self, thing: Any, expression: str, where: str, kind: str = "object", at: At = None
    ) -> None:
        """Enter the condition that an expression is this object."""
        holds = f"{expression} is {self.names.of(thing)}"
        bulk = None if at is None else Bulk("item", at[0], at[1], thing)
        if at is COVERED:
            bulk = Bulk("covered", None)
        was = f"another {type(thing).__name__}"
        self.check(holds, expression, was, where, kind, bulk)

    def is_new(self, thing: Any) -> bool:
        """Whether an object was not looked into before; it is now."""
        if id(thing) in self._seen:
            return False
        self._seen.add(id(thing))
        self.names.of(thing)
        return True

    def value(self, thing: Any, expression: str, where: str, at: At = None) -> None:
        """Enter what there is to say of one thing, by its kind.

        Args:
            at: the dict and the key where it is found, if the dict is always the same object.
        """
        kind = thing.__class__
        if self._depth > _DEEPEST:
            return
        self._depth += 1
        try:
            if kind in PLAIN:
                bulk = None
                if at is not None and at is not COVERED and not is_odd(thing):
                    bulk = Bulk("plain", at[0], at[1], thing)
                self.check(equals(expression, thing), expression, told(thing), where, "value", bulk)
            elif isinstance(thing, torch.Tensor):
                self._tensor(thing, expression, where, at)
            elif kind in _LISTS or (isinstance(thing, tuple) and hasattr(kind, "_fields")):
                self._elements(thing, range(len(thing)), expression, where)
            elif kind in _DICTS:
                self._dict(thing, expression, where)
            else:
                self._object(thing, expression, where, at)
        finally:
            self._depth -= 1

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Enter the arguments of a call."""
        self.is_in_arguments = True
        for name, given in (("a", len(args)), ("k", len(kwargs))):
            self.check(
                f"len({name}) == {given}",
                f"len({name})",
                str(given),
                "the number of arguments",
                "value",
            )
        for index, value in enumerate(args):
            self.value(value, f"a[{index}]", f"argument {index}")
        for key, value in kwargs.items():
            self.value(value, f"k[{key!r}]", f"argument {key}")

    def _tensor(self, tensor: torch.Tensor, expression: str, where: str, at: At) -> None:
        if tensor.__class__ is not XlaTensor:
            self._tensor_elsewhere(tensor, expression, where)
        elif self.is_in_arguments:
            self._argument(tensor, expression, where)  # type: ignore[arg-type]
        else:
            self.same(tensor, expression, where, "tensor", at)
            self.hold(tensor, where)  # type: ignore[arg-type]

    def _tensor_elsewhere(self, tensor: torch.Tensor, expression: str, where: str) -> None:
        if self.is_in_arguments:
            raise Unfit(
                "argument",
                f"{where} is a {tensor.type()} of shape {tuple(tensor.shape)} on {tensor.device};"
                " give tensors that are on the device",
            )
        self.same(tensor, expression, where, "tensor")
        version = f"{self.names.of(tensor)}._version"
        was = f"version {tensor._version}"
        self.check(f"{version} == {tensor._version}", version, was, f"what {where} holds", "tensor")

    def _argument(self, tensor: XlaTensor, expression: str, where: str) -> None:
        if tensor.requires_grad:
            raise Unfit(
                "argument",
                f"{where} requires a gradient; let the function find parameters in a module, or by"
                " a variable from outside",
            )
        value, value_now = tensor.value, f"{expression}.value"
        holds = f"{expression}.__class__ is {self.names.of(XlaTensor)}"
        holds += f" and {expression}.requires_grad is False"
        type_ = f"{value_now}.type"
        if isinstance(value, ViewValue):
            steps = self.names.of(steps_of)
            holds += f" and {steps}({value_now}) == {self.names.of(steps_of(value))}"
        else:
            holds += f" and {value_now}.parent is None and {type_} is {self.names.of(value.type)}"
        device = self.names.of(value.trace.device)
        holds += f" and {value_now}.trace.device is {device}"
        self.check(holds, type_, told(value.type), where, "shape")
        self.arguments.append(Argument(expression, tensor, where))

    def hold(self, tensor: XlaTensor, where: str, *, may_require_grad: bool = True) -> None:
        """Enter what there is to say of a tensor that stays the same object."""
        if id(tensor) in self.held:
            return
        self.held[id(tensor)] = tensor, where
        name, kind = self.names.of(tensor), "tensor"
        value = self.names.of(tensor.value)
        of_value = f"{name}.value is {value}"
        bulk = Bulk("attribute", tensor, "value", tensor.value)
        self.check(of_value, name, "other memory", f"the memory of {where}", kind, bulk)
        if not may_require_grad:
            return
        gradient = f"{name}.requires_grad"
        was = str(tensor.requires_grad)
        bulk = Bulk("attribute", tensor, "requires_grad", tensor.requires_grad)
        self.check(f"{gradient} is {was}", gradient, was, f"{where}.requires_grad", kind, bulk)
        if tensor.requires_grad:
            for attribute in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                hooks = getattr(tensor, attribute)
                none = None if hooks is not None else Bulk("attribute", tensor, attribute, None)
                self.hooks(hooks, f"{name}.{attribute}", where, none)

    def hooks(
        self,
        hooks: Mapping[int, Any] | None,
        expression: str,
        where: str,
        bulk: Bulk | None = None,
    ) -> None:
        """Hooks are the same ones.

        Args:
            bulk: how it is compared that there are none.
        """
        found = [*map(id, hooks.values())] if hooks else []
        for hook in (hooks or {}).values():
            self.names.of(hook)  # It must live, so that nothing else has its id.
        holds = f"ids({expression}.values()) == {found}" if found else f"not {expression}"
        was = f"{len(found)} of them" if found else "none"
        now = f"{expression} and len({expression})"
        self.check(holds, now, was, f"hooks of {where}", "hook", None if found else bulk)

    def _elements(
        self, thing: Any, keys: Sequence[Any] | range, expression: str, where: str
    ) -> None:
        kind = self.names.of(thing.__class__)
        holds = f"{expression}.__class__ is {kind} and len({expression}) == {len(keys)}"
        self.check(holds, f"len({expression})", str(len(keys)), f"the length of {where}", "value")
        if len(keys) > _MOST_ELEMENTS:
            if not self.is_in_arguments:
                self.same(thing, expression, where)
            return
        for key in keys:
            self.value(thing[key], f"{expression}[{key!r}]", f"{where}[{key!r}]")

    def _dict(self, thing: dict[Any, Any], expression: str, where: str) -> None:
        keys = [key for key in thing if key.__class__ in PLAIN]
        if len(keys) == len(thing):
            self._elements(thing, keys, expression, where)
            return
        # By tensors or modules: optimizers have such, and they are looked into there.
        self.same(thing, expression, where)
        found = [*map(id, thing.values())]
        for value in thing.values():
            self.names.of(value)
        now = f"ids({expression}.values())"
        self.check(f"{now} == {found}", expression, "other elements", where, "object")

    def _object(self, thing: Any, expression: str, where: str, at: At) -> None:
        if isinstance(thing, np.ndarray | np.generic | set | frozenset):
            self._host_data(thing, expression, where)
        elif isinstance(thing, functools.partial):
            self.value(thing.func, f"{expression}.func", f"{where}.func")
            self.value(thing.args, f"{expression}.args", f"{where}.args")
            self.value(thing.keywords, f"{expression}.keywords", f"{where}.keywords")
        elif isinstance(thing, MethodType):
            self.value(thing.__func__, f"{expression}.__func__", where)
            self.value(thing.__self__, f"{expression}.__self__", f"the object of {where}")
        elif isinstance(thing, nn.Module | torch.optim.Optimizer):
            self.same(thing, expression, where, at=at)
            self.look_into(thing, where)
        elif isinstance(thing, _WHOLE):
            self.same(thing, expression, where, at=at)
            if isinstance(thing, FunctionType | type):
                self.look_into(thing, where)
        else:
            self._unknown(thing, expression, where, at)

    def _host_data(self, thing: Any, expression: str, where: str) -> None:
        if isinstance(thing, np.ndarray):
            if self.is_in_arguments:
                raise Unfit("argument", f"{where} is a numpy array; give tensors of the device")
            self.same(thing, expression, where)
            if thing.nbytes <= _MOST_ELEMENTS:
                holds = f"{expression}.tobytes() == {thing.tobytes()!r}"
                self.check(holds, expression, "other numbers", f"what {where} holds", "value")
            return
        kept = self.names.of(frozenset(thing) if isinstance(thing, set) else thing)
        kind = self.names.of(thing.__class__)
        holds = f"{expression}.__class__ is {kind} and {expression} == {kept}"
        self.check(holds, expression, "other values", where, "value")

    def _unknown(self, thing: Any, expression: str, where: str, at: At) -> None:
        """An object of some class: by identity, or by its class where each call has another one."""
        kind = thing.__class__
        if not self.is_in_arguments:
            self.same(thing, expression, where, at=at)
        else:
            holds = f"{expression}.__class__ is {self.names.of(kind)}"
            self.check(holds, expression, told(thing), where, "value")
        is_ours = holders.is_of_torch(kind)
        attributes = getattr(thing, "__dict__", {})
        if not self.is_in_arguments and not self.is_new(thing):
            return
        self.methods(kind, where)
        is_mapping = isinstance(thing, Mapping)
        base = f"{expression}.__dict__" if self.is_in_arguments else self.names.of(attributes)
        for name, value in [*attributes.items()]:
            # What no code that was found names is not read.
            if is_ours or is_mapping or name in self.attributes:
                held = None if self.is_in_arguments else (attributes, name)
                self.value(value, f"{base}[{name!r}]", f"{where}.{name}", held)

    def look_into(self, thing: Any, where: str) -> None:
        """What the same object may hold another time."""
        if not self.is_new(thing):
            return
        outside, self.is_in_arguments = self.is_in_arguments, False
        try:
            if isinstance(thing, nn.Module):
                holders.enter_module(self, thing, where)
            elif isinstance(thing, torch.optim.Optimizer):
                holders.enter_optimizer(self, thing, where)
            elif isinstance(thing, type):
                self.methods(thing, where)
            elif isinstance(thing, FunctionType):
                self._function(thing, where)
        finally:
            self.is_in_arguments = outside

    def methods(self, kind: type, where: str) -> None:
        """What the user's methods of a class read, those that are called by some code."""
        outside, self.is_in_arguments = self.is_in_arguments, False
        try:
            for function in code.functions_of(kind, self.attributes | {"forward", "__call__"}):
                if self.is_new(function):
                    self._function(function, f"{kind.__name__}.{function.__name__}")
        finally:
            self.is_in_arguments = outside

    def _function(self, function: FunctionType, where: str) -> None:
        """What the code of a function reads from outside."""
        if not code.is_users(function):
            return
        names = code.names_of(function.__code__)
        self.attributes |= names.attributes
        space = function.__globals__
        for name in sorted(names.globals & space.keys()):
            base = self.names.of(space)
            self.value(space[name], f"{base}[{name!r}]", f"the global {name}", (space, name))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:
                continue  # It has none yet.
            self.value(content, f"{self.names.of(cell)}.cell_contents", name)
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for default in defaults:
            self.value(default, self.names.of(default), f"a default of {where}")


def reach_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    called: Sequence[Any] = (),
) -> Reach:
    """What a call depends on.

    Args:
        called: modules and optimizers that it is known to use.

    Raises Unfit where the arguments are such that no call can be replayed.
    """
    reach = Reach()
    for _ in range(_PASSES):
        known = len(reach.attributes)
        reach = Reach(reach.attributes)
        reach.value(function, reach.names.of(function), getattr(function, "__name__", "function"))
        for thing in called:
            reach.look_into(thing, type(thing).__name__)
        reach.call(args, kwargs)
        # Code that was found last may read what was looked at first.
        if len(reach.attributes) == known:
            break
    return reach


def steps_of(value: Any) -> tuple[Any, ...]:
    """The type of the memory that a view looks into, and each step to it."""
    steps = []
    while isinstance(value, ViewValue):
        steps.append(value.step)
        value = value.parent
    return (value.type, *reversed(steps))

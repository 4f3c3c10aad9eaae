"""What a value is, in words that say the same in every process, or that there are none.

Two values with one description are computed with alike, as long as the packages behind them are of
the same source: functions of torch, JAX and this package are described by their place in it, with
what they enclose. A user's function has no description, for its source may change at any time;
neither has anything that holds an address.
"""

import enum
import functools
import hashlib
import os
import struct
import sys
import threading
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from torch_xdist.core.trace.operators import Op
from torch_xdist.core.trace.plans import Param, Plan, ScalarParam
from torch_xdist.core.trace.tensor_types import TensorType

# Whose functions are what the release, or the source, says.
PACKAGES = ("torch_xdist", "jax", "jaxlib", "numpy", "torch", "ml_dtypes")
_STANDARD = frozenset({"builtins", "math", "operator", "functools", "itertools"})
# Reading larger ones would cost more than it saves.
_MOST_BYTES = 1 << 20
_PLAIN = (bool, int, str, bytes, complex, types.NoneType, types.EllipsisType)
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format, torch.device)
# Of a class's own attributes: what tells nothing of what it computes.
_UNTOLD = frozenset(
    {"__doc__", "__module__", "__name__", "__qualname__", "__wrapped__", "__weakref__"}
)
# Whose objects are described by what they hold, where that is all they are.
_WITH_OBJECTS = ("torch_xdist", "jax")
_POINTER = struct.calcsize("P")


class UndescribableError(Exception):
    """A value of which nothing says what it will be in another process."""


def described(value: Any) -> str:
    """The description of a value.

    Raises UndescribableError where it, or anything inside, has none.
    """
    try:
        return _described(value)
    except RecursionError:
        raise UndescribableError(f"{type(value).__name__} in a circle") from None


def digest(text: str) -> str:
    """What stands for a description: 32 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _described(value: Any) -> str:
    cls = value.__class__
    if cls in _PLAIN:
        return f"{cls.__name__} {value!r}"
    if cls is float:
        return f"float {value.hex()}"
    describe = _KINDS.get(cls)
    if describe is not None:
        return describe(value)
    if isinstance(value, _OF_TORCH):
        return f"{cls.__name__} {value}"
    if isinstance(value, enum.Enum):
        return f"{_path(cls)}.{value.name}"
    if isinstance(value, type):
        return _path(value)
    if isinstance(value, torch._ops.OpOverload):
        return f"op {value}"
    if isinstance(value, tuple | list | dict | set | frozenset):
        return _container(value)
    if isinstance(value, np.generic | np.ndarray | np.dtype | jax.Array):
        return _array(value)
    found = _at_its_path(value)
    return found if found is not None else _object(value)


def _container(value: Any) -> str:
    if isinstance(value, dict):
        parts = sorted(f"{_described(k)}: {_described(v)}" for k, v in value.items())
    else:
        parts = [_described(part) for part in value]
        if isinstance(value, set | frozenset):
            parts.sort()
    name = type(value).__name__ if type(value).__module__ == "builtins" else _path(type(value))
    return f"{name}[{', '.join(parts)}]"


def _array(value: Any) -> str:
    if isinstance(value, np.dtype):
        return f"dtype {value.str} {value.name}"
    is_data = isinstance(value.dtype, np.dtype) and not value.dtype.hasobject
    is_traced = isinstance(value, jax.core.Tracer)
    if not is_data or is_traced or value.nbytes > _MOST_BYTES:
        raise UndescribableError(f"an array {value.dtype}{list(value.shape)}")
    known = hashlib.blake2b(np.asarray(value).tobytes()).hexdigest()
    weak = getattr(value, "weak_type", False)
    return f"{type(value).__name__} {value.dtype}{list(value.shape)} {weak} {known}"


def _type(type_: TensorType) -> str:
    return f"{type_.dtype}{type_.shape}{type_.stride}{type_.offset}"


def _plan(plan: Plan) -> str:
    if plan.description is None:
        how = plan.lowering if plan.lowering is not None else plan.compute.told()  # type: ignore[union-attr]
        parts = (
            plan.name, plan.op, plan.args, plan.kwargs, plan.operand_types, plan.types,
            plan.is_collective, plan.is_random, how,
        )  # fmt: skip
        plan.description = digest(", ".join(map(_described, parts)))
    return f"plan {plan.description}"


class _Within(threading.local):
    """The functions and objects whose parts are being described, the outermost first."""

    def __init__(self) -> None:
        self.ids: list[int] = []


_within = _Within()


def _once(describe: Callable[[Any], str]) -> Callable[[Any], str]:
    """A description that does not go around in a circle, as from a function to its derivative's
    rule and back: what is around a value is told by how many steps out it is."""

    @functools.wraps(describe)
    def describe_once(value: Any) -> str:
        ids = _within.ids
        if id(value) in ids:
            return f"what is {len(ids) - ids.index(id(value))} around"
        ids.append(id(value))
        try:
            return describe(value)
        finally:
            ids.pop()

    return describe_once


@_once
def _function(function: types.FunctionType) -> str:
    code = function.__code__
    parts = [f"function {_file(code.co_filename)} {code.co_qualname} {code.co_firstlineno}"]
    for cell in function.__closure__ or ():
        try:
            parts.append(_described(cell.cell_contents))
        except ValueError:
            raise UndescribableError(f"{code.co_qualname} is not made yet") from None
    parts.append(_described(function.__defaults__))
    parts.append(_described(function.__kwdefaults__))
    return f"({', '.join(parts)})"


def _partial(value: functools.partial[Any]) -> str:
    return (
        f"partial({_described(value.func)}, {_described(value.args)}, {_described(value.keywords)})"
    )


def _method(value: types.MethodType) -> str:
    return f"method({_described(value.__func__)}, {_described(value.__self__)})"


def _module(value: types.ModuleType) -> str:
    return f"module {_checked(value.__name__)}"


@_once
def _object(value: Any) -> str:
    """One of a class of this package or JAX: its class, and all it holds."""
    cls = type(value)
    slots = [s for c in cls.__mro__ for s in _slots(c)]
    # What C holds of an object nobody sees here.
    is_all_seen = cls.__basicsize__ <= object.__basicsize__ + _POINTER * (len(slots) + 1)
    if cls.__module__.partition(".")[0] not in _WITH_OBJECTS or not is_all_seen:
        raise UndescribableError(f"an object of {cls.__module__}.{cls.__qualname__}")
    held = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    held.update(getattr(value, "__dict__", {}))
    told = {key: held[key] for key in held.keys() - _UNTOLD if not _is_derived(cls, key)}
    return f"{_path(cls)}{_container(told)}"


def _is_derived(cls: type, name: str) -> bool:
    """Whether it is computed from the rest and kept, in processes where somebody has asked."""
    return isinstance(getattr(cls, name, None), functools.cached_property)


def _slots(cls: type) -> Iterable[str]:
    found = vars(cls).get("__slots__", ())
    names = (found,) if isinstance(found, str) else found
    return [name for name in names if name != "__dict__"]


def _at_its_path(value: Any) -> str | None:
    """What a module of these packages has under the name that the value says; None: it has not."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if name is None:  # a universal function of JAX's has no other
        name = getattr(value, "__name__", None)
    found = sys.modules.get(module) if isinstance(module, str) else None
    if found is None or not isinstance(name, str) or not _is_of_packages(str(module)):
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


def _path(cls: type) -> str:
    return f"{_checked(cls.__module__)}.{cls.__qualname__}"


def _checked(module: str) -> str:
    if _is_of_packages(module):
        return module
    raise UndescribableError(f"something of {module}")


def _is_of_packages(module: str) -> bool:
    root = module.partition(".")[0]
    return root in PACKAGES or root in _STANDARD


@functools.cache
def _file(path: str) -> str:
    """Where a file of these packages is in them, wherever they are installed."""
    real = os.path.realpath(path)
    for folder, name in _folders():
        if real.startswith(folder):
            return name + real[len(folder) :]
    raise UndescribableError(f"a function of {path}")


@functools.cache
def _folders() -> tuple[tuple[str, str], ...]:
    """The folders of these packages, links resolved, and the name that stands for each."""
    found = []
    for name in PACKAGES:
        for folder in getattr(sys.modules.get(name), "__path__", ()):
            for part in [folder, *_links(Path(folder))]:
                found.append((os.path.realpath(part) + os.sep, f"{name}/{os.path.basename(part)}/"))
    return tuple(found)


def _links(folder: Path) -> list[str]:
    # An editable install has links to folders elsewhere.
    return [str(part) for part in folder.iterdir() if part.is_symlink()]


_KINDS: dict[type, Callable[[Any], str]] = {
    TensorType: _type,
    Plan: _plan,
    Op: lambda op: f"op {op.name}",
    Param: repr,
    ScalarParam: repr,
    types.FunctionType: _function,
    functools.partial: _partial,
    types.MethodType: _method,
    types.ModuleType: _module,
}

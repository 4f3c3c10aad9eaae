"""Walk nested containers and replace the tensors in them, all in one conversion.

Used to move whole batches, states and checkpoints between devices: every tensor is found first,
one call converts them together, and the containers are rebuilt around the results. Shared
references stay shared and cycles stay cycles; the containers given are never changed.
"""

import copy
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

Select = Callable[[Any], bool]
Convert = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class DataWrapper:
    """An object that tells which tensors it holds, and takes their replacements.

    Subclass it, and define `get_tensors` (a list) and `from_tensors` (the same list converted).
    """

    def get_tensors(self) -> list[torch.Tensor]:
        """The tensors held, in an order of the object's own."""
        raise NotImplementedError("DataWrapper.get_tensors: define it in the subclass")

    def from_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """An object like this one around `tensors`, in the order of `get_tensors`."""
        raise NotImplementedError("DataWrapper.from_tensors: define it in the subclass")


class ToXlaTensorArena:
    """Replaces tensors inside nested data.

    Args:
        convert_fn: called once with the list of selected tensors; returns as many.
        select_fn: which tensors to replace.
        keep_tuples: rebuild tuples and named tuples as what they were. torch_xla turns both into
            lists, and so does the default.
    """

    def __init__(
        self, convert_fn: Convert, select_fn: Select, *, keep_tuples: bool = False
    ) -> None:
        self._convert = convert_fn
        self._select = select_fn
        self._keep_tuples = keep_tuples

    def transform(self, inputs: Any) -> Any:
        """The data with its selected tensors replaced; untouched parts may be shared with it."""
        found: list[torch.Tensor] = []
        for_each_instance(inputs, self._select, found.append)
        converted = list(self._convert(found)) if found else []
        if len(converted) != len(found):
            raise ValueError(
                f"ToXlaTensorArena.transform: convert_fn was given {len(found)} tensors and"
                f" returned {len(converted)}; it must return one for each"
            )
        by_id = {id(old): new for old, new in zip(found, converted)}
        return for_each_instance_rewrite(
            inputs, self._select, lambda old: by_id[id(old)], keep_tuples=self._keep_tuples
        )


def for_each_instance(value: Any, select_fn: Select, fn: Callable[[Any], Any]) -> None:
    """Call `fn` once on every selected object inside `value`, in order of first sight."""
    seen: set[int] = set()
    kept: list[Any] = []  # keeps ids of temporary objects from being given out again
    _visit(value, select_fn, fn, seen, kept)


def _visit(
    value: Any, select: Select, fn: Callable[[Any], Any], seen: set[int], kept: list[Any]
) -> None:
    if id(value) in seen:
        return
    if select(value):
        seen.add(id(value))
        fn(value)
        return
    for part in _parts(value):
        if part is value:
            seen.add(id(value))
            kept.append(value)
        else:
            _visit(part, select, fn, seen, kept)


def _parts(value: Any) -> list[Any]:
    """The value itself, marking it as a container, then what it holds; [] for plain data."""
    if isinstance(value, DataWrapper):
        return [value, *value.get_tensors()]
    if isinstance(value, dict):
        # In the order in which `_Rewrite` walks.
        return [value, *itertools.chain.from_iterable(value.items())]
    if isinstance(value, list | tuple | set | frozenset):
        return [value, *value]
    if _has_attributes(value):
        return [value, *value.__dict__.values()]
    return []


_OPAQUE = (
    type,
    torch.Tensor,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, _OPAQUE)


def for_each_instance_rewrite(
    value: Any, select_fn: Select, fn: Callable[[Any], Any], *, keep_tuples: bool = False
) -> Any:
    """A copy of `value` in which every selected object was replaced by `fn(object)`."""
    return _Rewrite(select_fn, fn, keep_tuples)(value)


class _Rewrite:
    """One walk; `_done` maps the id of each object met to (the object, its replacement)."""

    def __init__(self, select: Select, fn: Callable[[Any], Any], keep_tuples: bool) -> None:
        self._select = select
        self._fn = fn
        self._keep_tuples = keep_tuples
        self._done: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if id(value) in self._done:
            return self._done[id(value)][1]
        if self._select(value):
            return self._note(value, self._fn(value))
        if isinstance(value, DataWrapper):
            return self._note(value, value.from_tensors([self(t) for t in value.get_tensors()]))
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, list):
            return self._list(value)
        if isinstance(value, tuple):
            return self._tuple(value)
        if isinstance(value, set | frozenset):
            return self._note(value, type(value)(self(item) for item in value))
        if _has_attributes(value):
            return self._object(value)
        return value

    def _note(self, old: Any, new: Any) -> Any:
        self._done[id(old)] = (old, new)
        return new

    def _dict(self, value: dict[Any, Any]) -> Any:
        result = self._note(value, copy.copy(value))
        result.clear()
        for key, item in value.items():
            new_key = self(key)  # Before its item, as `_visit` meets them.
            result[new_key] = self(item)
        for name, item in getattr(value, "__dict__", {}).items():
            # A state_dict carries its versions as an attribute.
            setattr(result, name, self(item))
        return result

    def _list(self, value: list[Any]) -> Any:
        result = self._note(value, copy.copy(value))
        result[:] = [self(item) for item in value]
        return result

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        if not self._keep_tuples:
            result: list[Any] = self._note(value, [])
            result.extend(self(item) for item in value)
            return result
        items = [self(item) for item in value]
        if all(new is old for new, old in zip(items, value)):
            return self._note(value, value)
        named = hasattr(value, "_fields")
        return self._note(value, type(value)(*items) if named else type(value)(items))

    def _object(self, value: Any) -> Any:
        held: list[Any] = []
        for_each_instance(value, self._select, held.append)
        if not held:
            # Locks, files and loggers cannot be copied, and need not be.
            return self._note(value, value)
        result = self._note(value, copy.copy(value))
        for name, item in value.__dict__.items():
            result.__dict__[name] = self(item)
        return result

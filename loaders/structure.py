"""Batches as nested structures: find the tensors in one, or rebuild it around replaced tensors.

Lists, dicts, named tuples, dataclasses, `PackedSequence`, `DataWrapper` and plain objects keep
their type; plain tuples become lists, as torch_xla hands them out. The batch given is never
changed, a tensor that appears twice is replaced once, and everything else (None, strings, numbers,
numpy arrays) is passed on as it is. Called by the feeds for each batch, so the common shapes come
first.
"""

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from torch_xdist.arena import DataWrapper

# Called with a tensor and the nearest key or field name above it ("" where there is none).
Replace = Callable[[torch.Tensor, str], Any]

_PLAIN = frozenset((str, bytes, int, float, bool, complex, type(None)))
_OPAQUE = (type, torch.nn.Module, types.ModuleType, types.FunctionType, types.MethodType)


def mapped(value: Any, replace: Replace) -> Any:
    """`value` rebuilt with every tensor in it replaced."""
    return _Mapping(replace).of(value, "")


class _Mapping:
    """One walk over one batch; `_done` keeps repeated tensors and objects one thing."""

    __slots__ = ("_done", "_replace")

    def __init__(self, replace: Replace) -> None:
        self._replace = replace
        self._done: dict[int, Any] = {}

    def of(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list or kind is tuple:
            return [self.of(item, name) for item in value]
        if kind is dict:
            return {key: self.of(item, str(key)) for key, item in value.items()}
        return self._unusual(value, name)

    def _tensor(self, value: torch.Tensor, name: str) -> Any:
        key = id(value)
        if key not in self._done:
            self._done[key] = self._replace(value, name)
        return self._done[key]

    def _unusual(self, value: Any, name: str) -> Any:
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, PackedSequence):
            return self._packed(value, name)
        if isinstance(value, DataWrapper):
            return value.from_tensors([self.of(t, name) for t in value.get_tensors()])
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, tuple):
            items = [self.of(item, str(field)) for field, item in _named_items(value)]
            return value._make(items) if hasattr(value, "_make") else items
        if isinstance(value, list):
            twin = copy.copy(value)
            twin[:] = [self.of(item, name) for item in value]
            return twin
        if isinstance(value, set | frozenset):
            return type(value)(self.of(item, name) for item in value)
        return self._object(value)

    def _packed(self, value: PackedSequence, name: str) -> PackedSequence:
        # torch wants the batch sizes of a PackedSequence on the CPU whatever its device.
        data, order, back = (
            self.of(t, name) for t in (value.data, value.sorted_indices, value.unsorted_indices)
        )
        return PackedSequence(data, value.batch_sizes, order, back)

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        items = {key: self.of(item, str(key)) for key, item in value.items()}
        if not isinstance(value, MutableMapping):
            return items
        twin = copy.copy(value)
        for key, item in items.items():
            twin[key] = item
        return twin

    def _object(self, value: Any) -> Any:
        """A dataclass or an object with attributes: copied where it holds a tensor."""
        if next(tensors(value), None) is None:
            # Locks, files and loggers cannot be copied, and need not be.
            return value
        twin = self._done[id(value)] = copy.copy(value)
        for name, item in _attributes(value):
            object.__setattr__(twin, name, self.of(item, name))
        return twin


def tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) for every tensor in a batch, such as ("['image'][0]", ...)."""
    return _tensors(value, "", set())


def _tensors(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if type(value) in _PLAIN or id(value) in seen:
        return
    seen.add(id(value))
    for part, item in _parts(value):
        yield from _tensors(item, path + part, seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, PackedSequence):
        yield ".data", value.data
        return
    if isinstance(value, DataWrapper):
        yield from ((f".get_tensors()[{i}]", t) for i, t in enumerate(value.get_tensors()))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{field}", item) for field, item in zip(value._fields, value))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    else:
        yield from ((f".{name}", item) for name, item in _attributes(value))


def _named_items(value: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    return zip(getattr(value, "_fields", [""] * len(value)), value)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass, else what stands in `__dict__`; [] for what is no data."""
    if isinstance(value, _OPAQUE):
        return []
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return list(getattr(value, "__dict__", {}).items())

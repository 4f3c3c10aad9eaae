"""What earlier runs found out about plans: what types their results have, and that they lower.

For a plan torch's meta kernels are asked, and its lowering is tried on abstract arrays, which takes
longer than all that a warm start does besides (docs/benchmarks.md). Both follow from the call, the
releases and the source, so what was found is kept beside the programs, in one entry. A call that
failed is not in it: its error is raised anew.
"""

import atexit
import functools
import json
import threading
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist import world
from torch_xdist.core.kept import on_disk, program_key
from torch_xdist.core.trace import global_state
from torch_xdist.core.trace.description import UndescribableError, described, digest
from torch_xdist.core.trace.tensor_types import TensorType, tensor_type

# As JSON has it: shape, dtype, strides and offset of each result, None where torch has none.
Types = Sequence[TensorType | None]
# How many are kept; each takes about 100 bytes.
_MOST = 5_000
# Written when so large a share of them is new, for each time all are written, and at the end.
_SHARE_NEW = 1 / 8


class KnownPlans:
    """The plans of earlier runs and of this one, by what describes their calls."""

    def __init__(self) -> None:
        self._known: dict[str, Any] | None = None
        self._new = 0
        self._lock = threading.Lock()

    def find(self, key: str) -> tuple[Types, int] | None:
        """The types of a plan's results and their structure; None where it is not known."""
        found = self._loaded().get(key) if key else None
        if found is None:
            return None
        *types, structure = found
        return [None if type_ is None else _type_of(type_) for type_ in types], structure

    def keep(self, key: str, types: Types, structure: int) -> None:
        """Remember a plan that can be lowered."""
        if not key:
            return
        known = self._loaded()
        known[key] = [*[type_ and _told(type_) for type_ in types], structure]
        self._new += 1
        # A job whose shapes never end forgets the oldest here too.
        while len(known) > _MOST:
            known.pop(next(iter(known)), None)

    def write(self, *, all_: bool = False) -> None:
        """Keep what is new for later runs, where it is worth it or all shall be."""
        known, new = self._known, self._new
        is_due = new > (0 if all_ else len(known or ()) * _SHARE_NEW)
        if not known or not is_due or world.current().local_rank:
            return
        with self._lock:
            # Other processes have written meanwhile, and the newest are at the end.
            merged = {**_read(), **known}
            for key in list(merged)[: max(len(merged) - _MOST, 0)]:
                del merged[key]
            on_disk.keep(_name(), json.dumps(merged, separators=(",", ":")).encode())
            self._new = 0

    def _loaded(self) -> dict[str, Any]:
        if self._known is None:
            with self._lock:
                if self._known is None:
                    self._known = _read()
                    atexit.register(self.write, all_=True)
        return self._known


def key_of(name: str, platform: str, parts: Any) -> str:
    """Under what a plan is kept: all that it is made from; "" for one that is not kept."""
    if not on_disk.is_on():
        return ""
    try:
        return digest(f"{name} {platform} {described(global_state.of_plan())} {described(parts)}")
    except UndescribableError:
        return ""


@functools.cache
def _name() -> str:
    return f"plans {program_key.source()}"


def _read() -> dict[str, Any]:
    try:
        found = json.loads(on_disk.find(_name()) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(type_: TensorType) -> list[Any]:
    dtype = str(type_.dtype).removeprefix("torch.")
    return [type_.shape, dtype, type_.stride, type_.offset]


def _type_of(told: list[Any]) -> TensorType:
    shape, dtype, stride, offset = told
    return tensor_type(tuple(shape), getattr(torch, dtype), tuple(stride), offset)


KNOWN = KnownPlans()

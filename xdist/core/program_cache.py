"""The compiled programs of this process, by key; the least recently used ones make room.

A program holds memory and, on the CPU, memory maps: XLA maps each compiled kernel on its own, about
150 maps for a network of twelve convolutions. The kernel allows a process 65 530 of them, and XLA
ends the process with a segmentation fault where it gets no more. A training whose shapes always
differ would come there after some hundred programs, so maps bound the cache as well as a number.
"""

import heapq
import sys
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from torch_xdist import metrics, settings

Key = tuple[Any, ...]
# Reading how many maps there are takes 1.6 us a map, so it is not done at every compilation.
_PROGRAMS_PER_LOOK = 16
# Of the maps the kernel allows: the rest is for what is compiled until the next look.
_SHARE_OF_MAPS = 0.5


class Entry(Protocol):
    """What the cache keeps. `used` is the cache's: the time of the last `get` or `put`."""

    used: int


E = TypeVar("E", bound=Entry)


class ProgramCache(Generic[E]):
    """Programs by key, at most XLA_COMPILATION_CACHE_SIZE of them."""

    def __init__(self) -> None:
        self._entries: dict[Key, E] = {}
        self._time = 0
        self._until_look = _PROGRAMS_PER_LOOK
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> Iterable[E]:
        """The programs, in the order they were made."""
        return self._entries.values()

    def clear(self) -> None:
        """Forget every program; what runs at the moment runs on."""
        self._entries.clear()

    def get(self, key: Key) -> E | None:
        """The program of a key, which counts as a use, or None."""
        entry = self._entries.get(key)
        if entry is not None:
            self._time = entry.used = self._time + 1
        return entry

    def put(self, key: Key, entry: E) -> None:
        """Keep a program, dropping the least recently used where there is no room."""
        with self._lock:
            self._make_room()
            self._time = entry.used = self._time + 1
            self._entries[key] = entry

    def _make_room(self) -> None:
        limit = settings.current().cache_size
        surplus = len(self._entries) + 1 - limit
        if surplus > 0:
            self._drop(surplus)
            _warn(f"{limit} programs (XLA_COMPILATION_CACHE_SIZE)")
        self._until_look -= 1
        if self._until_look <= 0:
            self._until_look = _PROGRAMS_PER_LOOK
            allowed = allowed_maps()
            if used_maps() > allowed * _SHARE_OF_MAPS:
                # Half at once, so that the next compilations need not look again.
                held = len(self._entries)
                self._drop(held - held // 2)
                _warn(f"half of the {allowed} memory maps of a process (vm.max_map_count)")

    def _drop(self, count: int) -> None:
        oldest = heapq.nsmallest(count, self._entries.items(), key=lambda item: item[1].used)
        for key, _ in oldest:
            del self._entries[key]
        metrics.count("EvictedProgram", len(oldest))


def used_maps() -> int:
    """How many memory maps this process has; 0 where the system does not say."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def allowed_maps() -> int:
    """How many memory maps a process may have; no limit where the system does not say."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return sys.maxsize


def _warn(full: str) -> None:
    # Python shows a warning of one text once.
    warnings.warn(
        f"torch_xdist: the cache of compiled programs is full with {full}; the least recently used"
        " make room and are compiled again when they come back. Programs differ where shapes or"
        " Python numbers differ from step to step: pad the batches (pad_to= of the loaders), or"
        " raise the limit. The counter EvictedProgram says how many went",
        RuntimeWarning,
        stacklevel=2,
    )

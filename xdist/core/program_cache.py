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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_xdist import metrics, settings

Key = tuple[Any, ...]
# Reading how many maps there are takes 1.6 us a map, so it is not done at every compilation.
_PROGRAMS_PER_LOOK = 16
# Of the maps the kernel allows: the rest is for what is compiled until the next look.
_SHARE_OF_MAPS = 0.5


@dataclass(slots=True)
class Program:
    """One compiled trace.

    `run(donated, kept, floats, ints)` takes the leaves' buffers and the runtime scalars and
    returns the value of each slot of `outs`.
    """

    run: Any
    outs: tuple[int, ...]
    fingerprint: str
    is_compiled: bool = False
    # Shapes and dtypes of the arguments of the first run.
    signature: Any = None
    # When it was last asked for, by the clock of the cache.
    used: int = 0

    def memory(self) -> Any:
        """XLA's account of the bytes a run needs. Compiles once more; for reports."""
        return self.run.lower(*self.signature).compile().memory_analysis()


class ProgramCache:
    """Programs by key, at most XLA_COMPILATION_CACHE_SIZE of them."""

    def __init__(self) -> None:
        self._programs: dict[Key, Program] = {}
        self._time = 0
        self._until_look = _PROGRAMS_PER_LOOK
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._programs)

    def values(self) -> Iterable[Program]:
        """The programs, in the order they were made."""
        return self._programs.values()

    def clear(self) -> None:
        """Forget every program; what runs at the moment runs on."""
        self._programs.clear()

    def get(self, key: Key) -> Program | None:
        """The program of a key, which counts as a use, or None."""
        program = self._programs.get(key)
        if program is not None:
            self._time = program.used = self._time + 1
        return program

    def put(self, key: Key, program: Program) -> None:
        """Keep a program, dropping the least recently used where there is no room."""
        with self._lock:
            self._make_room()
            self._time = program.used = self._time + 1
            self._programs[key] = program

    def _make_room(self) -> None:
        limit = settings.current().cache_size
        surplus = len(self._programs) + 1 - limit
        if surplus > 0:
            self._drop(surplus)
            _warn(f"{limit} programs (XLA_COMPILATION_CACHE_SIZE)")
        self._until_look -= 1
        if self._until_look <= 0:
            self._until_look = _PROGRAMS_PER_LOOK
            allowed = allowed_maps()
            if used_maps() > allowed * _SHARE_OF_MAPS:
                # Half at once, so that the next compilations need not look again.
                held = len(self._programs)
                self._drop(held - held // 2)
                _warn(f"half of the {allowed} memory maps of a process (vm.max_map_count)")

    def _drop(self, count: int) -> None:
        oldest = heapq.nsmallest(count, self._programs.items(), key=lambda item: item[1].used)
        for key, _ in oldest:
            del self._programs[key]
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

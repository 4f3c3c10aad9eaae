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
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_xdist import metrics, settings
from torch_xdist.core.early.announcement import Early
from torch_xdist.progress import PROGRESS

Key = tuple[Any, ...]
# Reading how many maps there are takes 1.6 us a map, so it is not done at every compilation.
_PROGRAMS_PER_LOOK = 16
# Of the maps the kernel allows: the rest is for what is compiled until the next look.
_SHARE_OF_MAPS = 0.5
# Of host memory, as measured on the CPU (docs/benchmarks.md): by a program, and by each operator.
_BYTES_PER_PROGRAM, _BYTES_PER_ROW = 300_000, 17_000
# Of a row of a key, where the programs are others.
_BYTES_PER_ENTRY = 200
_MB = 10**6
# A program that is missed again within so many steps is worth compiling.
_STEPS_BETWEEN = 4
# How many keys a program has at most; each holds rows.
_MOST_KEYS = 16
# How many keys that were missed are remembered.
_REMEMBERED = 256


@dataclass(slots=True, eq=False)
class Program:
    """One compiled tape.

    Attributes:
        executable: how it is lowered and compiled (see `collective_program`); None where it runs
            others.
        outs: the slots whose values it returns.
        mask: which leaves' buffers it is given for its results.
        fingerprint: of all it computes; the same on every rank that recorded the same.
        collectives: the fingerprint of its collectives alone, in which ranks must agree; "" for
            none.
        rows: how many it has.
        plans: of its rows.
        scalars: how many floats and ints its rows take.
        tally, run_tally: what the metrics count when its rows were recorded, and when it runs.
        run: `run(donated, kept, floats, ints)` takes the leaves' buffers and the runtime scalars,
            and returns the value of each slot of `outs`; with `early` it takes one float more, and
            returns one array more.
        asks_bytes: what a run takes of a GPU's memory beside its operands; 0 where it is little.
        asks_of: that GPU.
        early: what it announces to the host while it runs; None for nothing.
        took_s: to compile it, or to compute its results where it has them already.
        runs_others: whether it has parts, which are programs (see `changing_rows`). `run(results,
            arguments)` then appends its results, also where it raises KeyboardInterrupt.
    """

    executable: Any
    outs: tuple[int, ...]
    mask: tuple[bool, ...]
    fingerprint: str
    collectives: str
    rows: int
    plans: frozenset[Any]
    scalars: tuple[int, int]
    tally: metrics.Tally
    run_tally: metrics.Tally
    run: Any = None
    asks_bytes: int = 0
    asks_of: Any = None
    early: Early | None = None
    took_s: float = 0.0
    runs_others: bool = False
    # When it was last asked for, by the clock of the cache.
    used: int = 0
    # How often it was asked for since it was made.
    uses: int = 0
    # Under which the cache has it.
    keys: list[Key] = field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        """Whether the cache has it."""
        return bool(self.keys)

    @property
    def host_bytes(self) -> int:
        """About how much memory of the host it holds, as long as it is kept."""
        if self.runs_others:
            return self.rows * _BYTES_PER_ENTRY
        return _BYTES_PER_PROGRAM + self.rows * _BYTES_PER_ROW

    def memory(self) -> Any:
        """XLA's account of the bytes a run needs."""
        return self.executable.memory()


class ProgramCache:
    """Programs by key: XLA_COMPILATION_CACHE_SIZE and XDIST_PROGRAMS_MB of them at most."""

    def __init__(self) -> None:
        self._programs: dict[Key, Program] = {}
        self._time = 0
        # The step in which a key was missed for which no program was compiled, by its hash.
        self._missed: OrderedDict[int, int] = OrderedDict()
        self._held_bytes = 0
        self.newest: Program | None = None
        self._until_look = _PROGRAMS_PER_LOOK
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.values())

    def values(self) -> Collection[Program]:
        """The programs, in the order they were made."""
        return dict.fromkeys(self._programs.values()).keys()

    def clear(self) -> None:
        """Forget every program; what runs at the moment runs on."""
        with self._lock:
            for program in self._programs.values():
                program.keys.clear()
            self._programs.clear()
            self._missed.clear()
            self._held_bytes = 0
            self.newest = None

    def get(self, key: Key) -> Program | None:
        """The program of a key, which counts as a use, or None."""
        program = self._programs.get(key)
        if program is not None:
            self.use(program)
        return program

    def use(self, program: Program) -> None:
        """Count a use of a program."""
        self._time = program.used = self._time + 1
        program.uses += 1

    def put(self, key: Key, program: Program) -> tuple[list[Program], str]:
        """Keep a program; returns what made room for it (the least recently used), and why."""
        with self._lock:
            dropped, full = self._make_room(program)
            self._time = program.used = self._time + 1
            replaced = self._programs.get(key)
            if replaced is not None:
                self._forget(replaced)
            self._programs[key] = program
            program.keys.append(key)
            self._held_bytes += program.host_bytes
            self.newest = program
        return dropped, full

    def put_also(self, key: Key, known: Key) -> None:
        """Keep the program of a known key, if there is one, under this key too."""
        with self._lock:
            program = self._programs.get(known)
            if program is None or key in self._programs:
                return
            if len(program.keys) < _MOST_KEYS:
                self._programs[key] = program
                program.keys.append(key)

    def alike(self, key: Key) -> list[tuple[tuple[bool, ...], tuple[int, ...]]]:
        """The mask and the results of those programs whose keys differ in these alone."""
        entries, leaves, _, _, *rest = key
        found = [*self._programs.items()]
        return [
            (program.mask, program.outs)
            for known, program in found
            if known[1] == leaves and [*known[4:]] == rest and known[0] == entries
        ]

    def beside(self, key: Key) -> Iterator[tuple[tuple[Any, ...], Program]]:
        """The entries and the programs of keys that differ in the entries and the mask alone.

        The last ones come first.
        """
        _, leaves, _, *rest = key
        for known, program in reversed([*self._programs.items()]):
            if known[1] == leaves and [*known[3:]] == rest:
                yield known[0], program

    def missed_again(self, key: Key) -> bool:
        """Whether this was asked only steps ago: a program of the key's own is worth compiling.

        For one that is seldom wanted, as tensors share their arrays once, another can stand.
        """
        name, now = hash(key), PROGRESS.step
        with self._lock:
            at = self._missed.pop(name, None)
            if at is not None and now - at < _STEPS_BETWEEN:
                return True
            self._missed[name] = now
            while len(self._missed) > _REMEMBERED:
                self._missed.popitem(last=False)
        return False

    def _forget(self, program: Program) -> None:
        for key in program.keys:
            del self._programs[key]
        program.keys.clear()
        self._held_bytes -= program.host_bytes

    def _make_room(self, program: Program) -> tuple[list[Program], str]:
        dropped: list[Program] = []
        full = ""
        limit = settings.current().cache_size
        surplus = len(self) + 1 - limit
        if surplus > 0:
            dropped += self._drop(surplus)
            full = f"{limit} programs (XLA_COMPILATION_CACHE_SIZE)"
        limit_mb = settings.current().programs_mb
        while self._programs and self._held_bytes + program.host_bytes > limit_mb * _MB:
            # Some at once, for the oldest are looked for among all.
            dropped += self._drop(1 + len(self) // 64)
            full = f"about {limit_mb} MB of programs (XDIST_PROGRAMS_MB)"
        self._until_look -= 1
        if self._until_look <= 0:
            self._until_look = _PROGRAMS_PER_LOOK
            allowed = allowed_maps()
            if used_maps() > allowed * _SHARE_OF_MAPS:
                # Half at once, so that the next compilations need not look again.
                held = len(self)
                dropped += self._drop(held - held // 2)
                full = f"half of the {allowed} memory maps of a process (vm.max_map_count)"
        return dropped, full

    def _drop(self, count: int) -> list[Program]:
        oldest = heapq.nsmallest(count, self.values(), key=lambda program: program.used)
        for program in oldest:
            self._forget(program)
        metrics.count("EvictedProgram", len(oldest))
        return oldest


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


def warn_full(full: str) -> None:
    """Say that programs had to go, and what to do."""
    # Python shows a warning of one text once.
    warnings.warn(
        f"torch_xdist: the cache of compiled programs is full with {full}; the least recently used"
        " make room and are compiled again when they come back. Programs differ where shapes or"
        " Python numbers differ from step to step: pad the batches (pad_to= of the loaders), or"
        " raise the limit. The counter EvictedProgram says how many went",
        RuntimeWarning,
        stacklevel=2,
    )

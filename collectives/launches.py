"""The order in which the threads of one rank launch programs that hold collectives.

Collectives of a group are matched by their order alone, so two programs of one rank must never run
theirs in an order that another rank does not have. On one thread the runtime runs programs in the
order of their launches. A thread that launches after another one waits here until the program of
that one has ended, so programs of different threads do not mix. Whether the threads take turns in
the same order on every rank is the user's affair, and is checked where the ranks meet: by
`are_crossed`, of the thread that launched on each rank.

Thread names are compared only where they prove a crossing: launches that meet come from threads A
and B, and the first rank has a B too, the second an A. So a name that holds the rank, or a thread
that one rank alone has, is no error. Workers of one `concurrent.futures` pool count as one thread:
which of them takes a task is chance. Called by both transports.
"""

import concurrent.futures.thread
import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

_REMEMBERED = 256  # launches whose line is still known; far more than can be under way at once
_THREADS = 24  # names of launching threads that are told to the other ranks
_MAIN = "MainThread"
_Name = TypeVar("_Name", bound=Hashable)


@dataclass(slots=True)
class Launch:
    """One program with collectives that a thread launches.

    Attributes:
        number: counts the launches of this rank, from 1.
        where: the user's file:line.
        thread: the name of the launching thread.
        threads: the names of the threads that this rank has, or that have launched.
        is_of_another_thread: than the launch before.
        result: set by who launches: an array that the program gives. None: nothing to wait for.
    """

    number: int
    where: str
    thread: str
    threads: tuple[str, ...]
    is_of_another_thread: bool = False
    result: Any = None

    def operand(self) -> np.ndarray:
        """The number as an operand of the program; uint32 [1]."""
        return np.array([self.number], np.uint32)

    @property
    def thread_text(self) -> str:
        """ " in thread 'A'", for messages; empty for the main thread."""
        return f" in thread {self.thread!r}" if self.thread != _MAIN else ""


@dataclass(slots=True)
class _Last:
    thread: int = 0
    result: Any = None


class Launches:
    """The launches of one rank."""

    def __init__(self) -> None:
        # A finalizer that syncs may launch while its own thread launches.
        self._lock = threading.RLock()
        self._count = 0
        self._last = _Last()
        self._recent: OrderedDict[int, Launch] = OrderedDict()
        self._names: deque[str] = deque(maxlen=_THREADS)
        self._threads: tuple[tuple[int | None, ...], tuple[str, ...]] = (), ()

    @contextlib.contextmanager
    def next(self, where: str) -> Iterator[Launch]:
        """The next launch of this thread, while which no other thread launches."""
        with self._lock:
            thread = threading.current_thread()
            is_other = self._last.thread != thread.ident
            if is_other:
                self._wait_for_the_last()
            self._count += 1
            name = thread_name(thread)
            launch = Launch(self._count, where, name, self._all_threads(name), is_other)
            self._recent[launch.number] = launch
            if len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)
            self._last.thread = thread.ident or 0
            yield launch
            self._last.result, launch.result = launch.result, None

    def found(self, number: int) -> Launch | None:
        """The launch of this number; None where it is none, or long past."""
        return self._recent.get(number)

    def _wait_for_the_last(self) -> None:
        if self._last.result is not None:
            # How it ended is told to the thread that launched it.
            with contextlib.suppress(Exception):
                self._last.result.block_until_ready()
        self._last = _Last()

    def _all_threads(self, name: str) -> tuple[str, ...]:
        if name not in self._names:
            self._names.append(name)
            self._threads = (), ()
        alive = threading.enumerate()
        idents = tuple([thread.ident for thread in alive])
        if idents != self._threads[0]:
            kept = dict.fromkeys([*reversed(self._names), *map(thread_name, alive)])
            self._threads = idents, tuple(kept)[:_THREADS]
        return self._threads[1]


def thread_text(name: str) -> str:
    """What messages say of the thread of a launch, after a space; nothing of the main thread."""
    return f" in thread {name!r}" if name != _MAIN else ""


def thread_name(thread: threading.Thread) -> str:
    """The name by which a thread is compared; of a pool's workers the pool's."""
    target = getattr(thread, "_target", None)
    if target is not None and target is getattr(concurrent.futures.thread, "_worker", None):
        return thread.name.rpartition("_")[0]
    return thread.name


def are_crossed(threads: Sequence[_Name], known: Sequence[Collection[_Name]]) -> bool:
    """Whether launches that meet come from threads that prove different orders.

    `threads` holds the launching thread of each rank, `known` the threads that each rank has.
    """
    if len(set(threads)) == 1:
        return False
    pairs = list(zip(threads, known))
    return any(
        one != other and one in known_to_other and other in known_to_one
        for one, known_to_one in pairs
        for other, known_to_other in pairs
    )

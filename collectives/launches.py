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
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

_REMEMBERED = 256  # launches that can be found; far more than can be under way at once
_THREADS = 24  # names of launching threads that are told to the other ranks
_MAIN = "MainThread"
_Name = TypeVar("_Name", bound=Hashable)


class Launch:
    """One program with collectives that a thread launches; a context manager around that.

    Attributes:
        number: counts the launches of this rank, from 1.
        where: the user's file:line.
        thread: the name of the launching thread.
        threads: the names of the threads that this rank has, or that have launched.
        is_of_another_thread: than the launch before.
        result: set by who launches: an array that the program gives. None: nothing to wait for.
    """

    # Made for every step: plain attributes, and no generator around the launch.
    __slots__ = (
        "_launches",
        "is_of_another_thread",
        "number",
        "result",
        "thread",
        "threads",
        "where",
    )

    def __init__(self, launches: "Launches", where: str) -> None:
        self._launches, self.where = launches, where
        self.number = 0
        self.result: Any = None
        self.thread = ""
        self.threads: tuple[str, ...] = ()
        self.is_of_another_thread = False

    def __enter__(self) -> "Launch":
        self._launches.begin(self)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._launches.end(self)
        if error is not None:
            self._launches.explain(error)

    def operand(self) -> Any:
        """What the program carries, by which its collectives find this launch; uint32 [1]."""
        return self._launches.operand(self.number % _REMEMBERED + 1)


class Launches:
    """The launches of one rank.

    Args:
        explain: called with an error that ended a launch; may raise a better one.
        to_device: makes an operand of a numpy array, once for each.
    """

    def __init__(
        self,
        explain: Callable[[BaseException], None] = lambda error: None,
        to_device: Callable[[np.ndarray], Any] = lambda array: array,
    ) -> None:
        self.explain, self._to_device = explain, to_device
        self._operands: dict[int, Any] = {}
        # A finalizer that syncs may launch while its own thread launches.
        self._lock = threading.RLock()
        self._count = 0
        self._thread = 0  # of the last one
        self._result: Any = None
        self._recent: list[Launch | None] = [None] * (_REMEMBERED + 1)
        self._launched: deque[str] = deque(maxlen=_THREADS)
        self._alive: list[threading.Thread] = []
        self._name = ""
        self._names: tuple[str, ...] = ()

    def next(self, where: str) -> Launch:
        """The next launch of this thread; while it is entered, no other thread launches."""
        return Launch(self, where)

    def begin(self, launch: Launch) -> None:
        """Wait until it is the turn of this thread."""
        self._lock.acquire()
        try:
            thread = threading.get_ident()
            if thread != self._thread:
                launch.is_of_another_thread = True
                self._wait_for_the_last()
                self._thread = thread
            alive = threading.enumerate()
            if launch.is_of_another_thread or alive != self._alive:
                self._look_at_threads(alive)
            self._count += 1
            launch.number, launch.thread, launch.threads = self._count, self._name, self._names
            self._recent[self._count % _REMEMBERED + 1] = launch
        except BaseException:
            self._lock.release()
            raise

    def end(self, launch: Launch) -> None:
        """Let the next one launch."""
        self._result, launch.result = launch.result, None
        self._lock.release()

    def operand(self, place: int) -> Any:
        """The operand of a launch; an array from before is passed 15 us sooner than a new one."""
        found = self._operands.get(place)
        if found is None:
            found = self._operands[place] = self._to_device(np.array([place], np.uint32))
        return found

    def found(self, place: int) -> Launch | None:
        """The launch whose operand this is; None for 0: of a program that was not launched here."""
        return self._recent[place]

    def _wait_for_the_last(self) -> None:
        if self._result is not None:
            # How it ended is told to the thread that launched it.
            with contextlib.suppress(Exception):
                self._result.block_until_ready()
        self._result = None

    def _look_at_threads(self, alive: list[threading.Thread]) -> None:
        self._alive, self._name = alive, thread_name(threading.current_thread())
        if self._name not in self._launched:
            self._launched.append(self._name)
        names = dict.fromkeys([*reversed(self._launched), *map(thread_name, alive)])
        self._names = tuple(names)[:_THREADS]


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

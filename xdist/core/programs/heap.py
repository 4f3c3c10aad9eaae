"""The C library's heap in a process whose devices are CPUs: what it keeps, and what it may not use.

A program's temporaries are one block that XLA allocates at each run and frees after it, on a thread
of its own. glibc takes a block of more than 32 MiB from the system and gives it back, and the
system clears each of its pages again at the next run: 10,000 pages and a fifth of the processor
time of a step of a small LSTM. So large blocks come from one heap, which keeps what is freed.
`device.py` asks for it before JAX starts, because threads choose their heap when they first need
one.

Compiling a program leaves that heap full of holes, between what it keeps: after 20 seconds 30,000
of them, 600 MB. Each block of a run is then looked for among hundreds of free ones of about its
size, lists of which no two are in one cache line, and what runs together lies apart. So once a
program is compiled its holes are taken, and their pages are given back to the system; they are
holes again while the next one is compiled. Steps of nets after 1 to 20 seconds of compiling took
0.75 to 1.00 of the time, with up to 500 MB less (docs/optimizations.md).
"""

import contextlib
import ctypes
import mmap
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch_xdist import settings

# Parameters of glibc's mallopt (malloc.h), whose values are ints of 32 bits.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST_MB = 2047
# Holes are taken in blocks of these sizes. Smaller ones stay: there are many, their lists are
# short, and without them steps took as long.
_BLOCKS = tuple(1 << bits for bits in (22, 20, 18, 16, 15, 14))
# What is so large comes from behind all holes; with a smaller heap there is no telling.
_BEYOND = 1 << 28
# To take the holes takes 5 to 150 ms, the more the longer it was compiled.
_LONG_S = 0.5
_MANY_ROWS = 64


def keep_freed_memory() -> bool:
    """Keep up to XDIST_HEAP_MB; whether it is done: not by other C libraries, not beside users."""
    global _holes
    megabytes = min(settings.current().heap_mb, _MOST_MB)
    if megabytes <= 0 or settings.tunes_malloc():
        return False
    choose = _mallopt()
    if choose is None:
        return False
    size = megabytes << 20
    wanted = {_ARENA_MAX: 1, _MMAP_THRESHOLD: size, _TRIM_THRESHOLD: size}
    is_kept = all([choose(parameter, value) for parameter, value in wanted.items()])
    if is_kept and size > _BEYOND and _holes is None and hasattr(ctypes.CDLL(None), "mallinfo2"):
        _holes = Holes(gives_back=not settings.asks_for_large_pages())
    return is_kept


@contextlib.contextmanager
def without_holes(rows: int) -> Iterator[None]:
    """Around the compilation of a program of so many rows: it leaves no holes to those who run."""
    if _holes is None:
        yield
        return
    is_open = rows >= _MANY_ROWS and _holes.open()
    started_s = time.perf_counter()
    try:
        yield
    finally:
        if is_open or time.perf_counter() - started_s >= _LONG_S:
            _holes.close()


class _Info(ctypes.Structure):
    """glibc's `struct mallinfo2` (malloc.h, since 2.33)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("fordblks", "keepcost"),
        )
    )


class Holes:
    """The free pieces of the heap that nobody gets, since blocks of ours fill them.

    Args:
        gives_back: whether the system gets their pages. Large ones would be broken for it, which
            made steps 1.09 times as long, so where these are asked for the pages stay.
    """

    def __init__(self, *, gives_back: bool) -> None:
        self._gives_back = gives_back
        self._blocks: list[int] = []
        # One that lets other threads of Python run during each of 10,000 calls would take seconds.
        library: Any = ctypes.PyDLL(None)
        self._allocate, self._free, self._advise = library.malloc, library.free, library.madvise
        self._allocate.restype, self._allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        self._free.restype, self._free.argtypes = None, [ctypes.c_void_p]
        self._advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._info = library.mallinfo2
        self._info.restype, self._info.argtypes = _Info, []

    def __len__(self) -> int:
        return len(self._blocks)

    def open(self) -> bool:
        """Let them be used again; whether there were any."""
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            self._free(block)
        return bool(blocks)

    def close(self) -> None:
        """Take those that there are."""
        behind = self._allocate(_BEYOND)
        if not behind:
            return
        self._free(behind)
        left = self.free_bytes()
        for size in _BLOCKS:
            while left >= size and (block := self._allocate(size)):
                if block >= behind:
                    self._free(block)
                    break
                left -= size
                self._blocks.append(block)
                if self._gives_back:
                    self._give_back(block, size)

    def free_bytes(self) -> int:
        """In all holes, as glibc counts: nothing where another allocator stands before it."""
        info = self._info()
        return max(0, int(info.fordblks - info.keepcost))

    def _give_back(self, block: int, size: int) -> None:
        """The whole pages of a block, which holds nothing."""
        page = mmap.PAGESIZE
        first, end = -(-block // page) * page, (block + size) // page * page
        if end > first:
            self._advise(first, end - first, mmap.MADV_DONTNEED)


# Those of this process, once its heap keeps what is freed.
_holes: Holes | None = None


def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's; None where the C library has none."""
    try:
        found: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return None
    return found

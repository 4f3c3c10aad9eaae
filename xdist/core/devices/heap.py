"""What the C library keeps of the memory that XLA frees, in a process whose devices are CPUs.

A program's temporaries are one block that XLA allocates at each run and frees after it, on a thread
of its own. glibc takes a block of more than 32 MiB from the system and gives it back, and the
system clears each of its pages again at the next run: 10,000 pages and a fifth of the processor
time of a step of a small LSTM. So large blocks come from one heap, which keeps what is freed.
`device.py` asks for it before JAX starts, because threads choose their heap when they first need
one.
"""

import ctypes
from collections.abc import Callable

from torch_xdist import settings

# Parameters of glibc's mallopt (malloc.h), whose values are ints of 32 bits.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST_MB = 2047


def keep_freed_memory() -> bool:
    """Keep up to XDIST_HEAP_MB; whether it is done: not by other C libraries, not beside users."""
    megabytes = min(settings.current().heap_mb, _MOST_MB)
    if megabytes <= 0 or settings.tunes_malloc():
        return False
    choose = _mallopt()
    if choose is None:
        return False
    size = megabytes << 20
    wanted = {_ARENA_MAX: 1, _MMAP_THRESHOLD: size, _TRIM_THRESHOLD: size}
    return all([choose(parameter, value) for parameter, value in wanted.items()])


def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's; None where the C library has none."""
    try:
        found: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return None
    return found

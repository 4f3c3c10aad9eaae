"""A 32-bit word of shared memory that is counted up, and slept on: Linux futexes through ctypes.

Ordering. What a process wrote before `add_and_wake` is seen by whoever reads the new count and then
calls `fence`, on every processor. Python has no atomics, and taking a lock orders nothing here:
what stands before it may sink past its acquisition, what stands after its release may rise above
it. So the count is changed by the kernel (FUTEX_WAKE_OP), whose read-modify-write of a user's word
is a full barrier on every processor: a locked instruction on x86 (which also drains non-temporal
stores), `stlxr` and `dmb ish`, or an atomic with acquire and release, on ARM, `amoadd.aqrl` on
RISC-V. `fence` is the same operation on a word that nobody else sees: loads before it cannot pass
loads after it. On x86 and s390x no load passes an earlier one anyway, and `fence` does nothing.

Where the kernel refuses futexes (a sandbox), `wait` sleeps for a moment instead; callers look at
the word again either way. There `add_and_wake` is a plain store, which keeps the order on x86 and
s390x only: elsewhere it is an error.
"""

import ctypes
import errno
import platform
import time
from collections.abc import Callable

from torch_xdist.collectives.errors import CollectiveError

_MACHINE = platform.machine()
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_KEEPS_ORDER = _MACHINE in ("x86_64", "s390x")
# Without the private flag (128) where the waiters may be other processes.
_WAIT, _WAKE_OP_PRIVATE, _WAKE_OP = 0, 5 | 128, 5
_ADD_ONE = 1 << 28 | 1 << 12  # FUTEX_OP_ADD of 1; compares with 0, for wakes that nobody needs
_ADD_NOTHING = 1 << 28
_EVERYBODY = 2**31 - 1
_EXPECTED = (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)
_NAP_S = 0.0005


class _Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


def _syscall(fourth: type) -> Callable[..., int]:
    """`futex(number, address, operation, value, `fourth`, second address, third value)`."""
    kinds = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, fourth)
    kind = ctypes.CFUNCTYPE(ctypes.c_long, *kinds, ctypes.c_void_p, ctypes.c_uint32, use_errno=True)
    return kind(("syscall", ctypes.CDLL(None)))


_NUMBER = _NUMBERS.get(_MACHINE, -1)  # -1: the kernel says that there is no such call
_wait = _syscall(ctypes.POINTER(_Timespec))
_wake_op = _syscall(ctypes.c_ulong)
_own_word = ctypes.c_uint32()
_own_address = ctypes.addressof(_own_word)


def wait(address: int, seen: int, timeout_s: float) -> None:
    """Sleep until the word at `address` is woken, differs from `seen`, or the time is over."""
    limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    if _wait(_NUMBER, address, _WAIT, seen, limit, None, 0) and (
        ctypes.get_errno() not in _EXPECTED
    ):
        time.sleep(min(timeout_s, _NAP_S))


def add_and_wake(address: int) -> None:
    """Add one to the word at `address`, after all that was written before; wake who waits on it.

    Raises:
        CollectiveError: the kernel refuses, and this processor would change the order.
    """
    if _wake_op(_NUMBER, address, _WAKE_OP, _EVERYBODY, 0, address, _ADD_ONE) >= 0:
        return
    if not _KEEPS_ORDER:
        reason = errno.errorcode.get(ctypes.get_errno(), "unknown")
        raise CollectiveError(
            f"shared memory: the kernel refuses futexes ({reason}), without which a processor of "
            f"kind {_MACHINE} may show data late; allow the system call, or use "
            "XDIST_TRANSPORT=gloo"
        )
    word = ctypes.c_uint32.from_address(address)
    word.value += 1


def fence() -> None:
    """What is read from now on is at least as new as what was read before."""
    if not _KEEPS_ORDER:
        _wake_op(_NUMBER, _own_address, _WAKE_OP_PRIVATE, 0, 0, _own_address, _ADD_NOTHING)

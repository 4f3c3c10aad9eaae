"""Sleeping until a 32-bit word of shared memory changes: Linux futexes through ctypes.

On other processors than those named here, and where the kernel refuses the call, `wait` sleeps for
a moment instead; callers look at the word again either way.
"""

import ctypes
import platform
import time
from typing import Any

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_NUMBER = _NUMBERS.get(platform.machine())
_WAIT, _WAKE = 0, 1  # without the private flag: the waiters are other processes
_EVERYBODY = 2**31 - 1
_NAP_S = 0.0005


class _Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


def _syscall() -> Any:
    if _NUMBER is None:
        return None
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function


_CALL = _syscall()


def wait(address: int, seen: int, timeout_s: float) -> None:
    """Sleep until the word at `address` is woken, differs from `seen`, or the time is over."""
    if _CALL is None:
        time.sleep(min(timeout_s, _NAP_S))
        return
    limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _CALL(
        ctypes.c_long(_NUMBER or 0),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAIT),
        ctypes.c_uint32(seen),
        ctypes.byref(limit),
        None,
        0,
    )


def wake(address: int) -> None:
    """Wake everybody who waits on the word at `address`."""
    if _CALL is not None:
        _CALL(
            ctypes.c_long(_NUMBER or 0),
            ctypes.c_void_p(address),
            ctypes.c_int(_WAKE),
            ctypes.c_int(_EVERYBODY),
            None,
            None,
            0,
        )

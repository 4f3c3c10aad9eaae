"""How the numbers of metrics read: durations, bytes and plain numbers, as torch_xla prints them.

What a metric measures follows from its name: `...Data` are bytes, `...Time` (and the few names
below) durations, the rest plain numbers.
"""

from collections.abc import Callable

NS_PER_S = 1e9
_TIME_NAMES = {
    "LazyTracing",
    "TensorToData",
    "RunCachedGraphInputData",
    "RunCachedGraphOutputData",
    "UnwrapXlaData",
    "WrapXlaData",
    "DeviceLockWait",
}


def value_text(name: str) -> Callable[[float], str]:
    """How the samples of this metric are printed."""
    if name.endswith("Time") or name in _TIME_NAMES:
        return time_text
    if name.endswith("Data"):
        return bytes_text
    return "{:.2f}".format


_TIME_PARTS = (
    (24 * 3600 * NS_PER_S, "d", 2),
    (3600 * NS_PER_S, "h", 2),
    (60 * NS_PER_S, "m", 2),
    (NS_PER_S, "s", 2),
    (NS_PER_S / 1e3, "ms", 3),
)


def time_text(ns: float) -> str:
    """A duration in nanoseconds as torch_xla prints it: 1234567 -> 001ms234.567us.

    Each part is the rounded remainder, not the truncated one: 1.7e9 reads 02s700ms000.000us.
    """
    parts: list[str] = []
    for unit_ns, unit, width in _TIME_PARTS:
        amount = ns / unit_ns
        if amount >= 1 or parts:
            parts.append(f"{amount:0{width}.0f}{unit}")
            ns -= int(amount) * unit_ns
    parts.append(f"{ns / 1e3:07.3f}us")
    return "".join(parts)


def bytes_text(amount: float) -> str:
    """A number of bytes with a unit of base 1024: 4638.7 -> 4.53KB."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if amount < 1024:
            return f"{amount:.2f}{unit}"
        amount /= 1024
    return f"{amount:.2f}PB"

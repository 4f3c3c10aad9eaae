"""How many samples per second: the tracker that training loops print."""

import time
from collections.abc import Callable

from torch_xdist import settings


class RateTracker:
    """Counts what `add` is given, and answers rates per second.

    Args:
        smooth_factor: weight of the previous rate in `rate`, 0 to 1; default
            RATE_TRACKER_SMOOTHING (0.4).
        clock: seconds that never go back; tests pass their own.
    """

    def __init__(
        self,
        smooth_factor: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._smooth = settings.current().rate_smoothing if smooth_factor is None else smooth_factor
        self._start_s = self._partial_s = clock()
        self._count = 0
        self._partial_count = 0
        self._rate: float | None = None

    def add(self, count: int) -> None:
        """Count `count` more samples."""
        self._count += count

    def rate(self) -> float:
        """Samples per second since the last call, smoothed with the previous answer."""
        now_s = self._clock()
        current = _per_second(self._count - self._partial_count, now_s - self._partial_s)
        if self._rate is None:
            self._rate = current
        else:
            self._rate = (1 - self._smooth) * current + self._smooth * self._rate
        self._partial_s, self._partial_count = now_s, self._count
        return self._rate

    def global_rate(self) -> float:
        """Samples per second since the tracker was made."""
        return _per_second(self._count, self._clock() - self._start_s)


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0

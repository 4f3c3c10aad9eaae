"""What a batch costs, and whether it is worth a thread.

Handing a batch from thread to thread takes about 0.3 ms on a machine with few cores. A batch that
costs less than 0.5 ms to make and to move is better made by the loop itself.
"""

from collections import deque
from statistics import mean, median

QUICK_S = 0.5e-3
SLOW_S = 5e-3
_SAMPLES = 128
_ENOUGH = 4  # for a median
_MANY = 32  # for a mean, which one busy moment of the machine must not decide


class Pace:
    """Seconds to make a batch and to move it: the newest samples of each."""

    def __init__(self) -> None:
        self._made_s: deque[float] = deque(maxlen=_SAMPLES)
        self._moved_s: deque[float] = deque(maxlen=_SAMPLES)
        self._moves = 0

    def made(self, seconds: float, *, first: bool) -> None:
        """A batch was made. The first of a pass is not counted: it starts the workers."""
        if not first:
            self._made_s.append(seconds)

    def moved(self, seconds: float) -> None:
        """A batch was moved. The very first is not counted: it starts the device."""
        self._moves += 1
        if self._moves > 1:
            self._moved_s.append(seconds)

    def is_quick(self) -> bool:
        """Whether a batch is better made on the spot; true until a few were timed.

        One batch of more than 5 ms decides early. The median is what a batch costs; the mean sees a
        few that are dear (a buffer that is refilled).
        """
        if not self._made_s or not self._moved_s:
            return True
        if len(self._made_s) < _ENOUGH:
            return max(self._made_s) + max(self._moved_s) < SLOW_S
        typical_s = median(self._made_s) + median(self._moved_s)
        is_uneven = len(self._made_s) >= _MANY and mean(self._made_s) > 2 * QUICK_S
        return typical_s < QUICK_S and not is_uneven

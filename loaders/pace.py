"""What a batch and a step cost, and whether reading ahead is worth its threads.

Reading ahead hides the making of a batch behind the step, so it can gain at most the shorter of the
two; handing the batch from thread to thread takes about 0.3 ms on a machine with few cores. Where
the gain is below 0.5 ms, the loop better makes its batches itself.
"""

from collections import deque
from collections.abc import Collection

QUICK_S = 0.5e-3
SLOW_S = 5e-3
_SAMPLES = 128
_ENOUGH = 4  # for a median
_INTERVAL = 64
_MANY = 32  # for a mean, which one busy moment of the machine must not decide


class Pace:
    """Seconds to make a batch, to move it, and of the loop between batches: the newest samples."""

    def __init__(self) -> None:
        self._made_s: deque[float] = deque(maxlen=_SAMPLES)
        self._moved_s: deque[float] = deque(maxlen=_SAMPLES)
        self._stepped_s: deque[float] = deque(maxlen=_SAMPLES)
        self._moves = 0
        self._asked = 0
        self._is_quick = True

    def made(self, seconds: float, *, first: bool) -> None:
        """A batch was made. The first of a pass is not counted: it starts the workers."""
        if not first:
            self._made_s.append(seconds)

    def moved(self, seconds: float) -> None:
        """A batch was moved. The very first is not counted: it starts the device."""
        self._moves += 1
        if self._moves > 1:
            self._moved_s.append(seconds)

    def stepped(self, seconds: float) -> None:
        """The loop came back for the next batch."""
        self._stepped_s.append(seconds)

    def is_quick(self) -> bool:
        """Whether a batch is better made on the spot; true until a few were timed.

        Cost: judged anew every 64 batches only; the verdict is kept in between.
        """
        self._asked += 1
        if self._asked <= _ENOUGH or self._asked % _INTERVAL == 0:
            self._is_quick = self._judge()
        return self._is_quick

    def _judge(self) -> bool:
        """A gain of more than 5 ms decides early.

        The median is what a batch costs; the mean sees a few dear ones (a buffer refilled).
        """
        made_s, moved_s, stepped_s = self._made_s, self._moved_s, self._stepped_s
        if not (made_s and moved_s and stepped_s):
            return True
        if len(made_s) < _ENOUGH:
            return min(max(made_s) + max(moved_s), max(stepped_s)) < SLOW_S
        cost_s = _median(made_s) + _median(moved_s)
        mean_s = sum(made_s) / len(made_s)
        if len(made_s) >= _MANY and mean_s > 2 * QUICK_S:
            cost_s = max(cost_s, mean_s)
        return min(cost_s, _median(stepped_s)) < QUICK_S


def _median(values: Collection[float]) -> float:
    # That of `statistics` adds fractions: half a millisecond for a hundred floats.
    return sorted(values)[len(values) // 2]

"""How long the training loop waited for its loader, and what that means.

One `InputWait` belongs to one pass over a loader. The first batch is not counted: it holds the
start of the workers. A pass that waits for more than a tenth of its time is input-bound.
"""

import time

from torch_xdist import metrics

METRIC = "InputWaitTime"  # seconds, one sample a batch
BOUND = 0.1


class InputWait:
    """Seconds waited in `next` and seconds passed, from the first batch to the last so far."""

    __slots__ = ("_started_s", "batches", "elapsed_s", "waited_s")

    def __init__(self) -> None:
        self.batches = 0
        self.waited_s = 0.0
        self.elapsed_s = 0.0
        self._started_s = 0.0

    def add(self, asked_s: float, batches: int = 1) -> None:
        """A batch (or the end: 0) arrived that was asked for at `asked_s`, by perf_counter."""
        now_s = time.perf_counter()
        metrics.observe(METRIC, now_s - asked_s)
        self.batches += batches
        if not self._started_s:
            self._started_s = now_s
            return
        self.waited_s += now_s - asked_s
        self.elapsed_s = now_s - self._started_s

    @property
    def share(self) -> float:
        """The part of the time spent waiting, 0 to 1."""
        return self.waited_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def verdict(self) -> str:
        """One line: whether the loader holds the training back, and by how much."""
        percent = f"{100 * self.share:.0f} % of the time waiting for the loader"
        numbers = f"({self.waited_s:.2f} s of {self.elapsed_s:.2f} s, {self.batches} batches)"
        if self.share < BOUND:
            return f"not input-bound: {percent} {numbers}"
        return f"input-bound: {percent} {numbers}; use more workers or a cheaper dataset"

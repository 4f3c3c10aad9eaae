"""What one pass over a loader shares with the loader it belongs to, and how long its loop waited.

The first batch of a pass is not counted as a wait: it holds the start of the workers. A pass that
waits for more than a tenth of its time is input-bound.
"""

import logging
import time

from torch_xdist import metrics
from torch_xdist.loaders.pace import Pace
from torch_xdist.loaders.position import Position, Start

log = logging.getLogger(__name__)

METRIC = "InputWaitTime"  # seconds, one sample a batch
BOUND = 0.1
REPORTED_S = 5.0  # shorter passes are mostly start-up


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


class Pass:
    """What one pass shares with the loader it belongs to."""

    def __init__(
        self,
        pace: Pace | None = None,
        adapts: bool = False,
        position: Position | None = None,
        start: Start | None = None,
        wait: InputWait | None = None,
    ) -> None:
        self.pace = pace or Pace()
        self.adapts = adapts
        self.position = position or Position()
        self.start = start
        self.wait = wait or InputWait()

    def end(self) -> None:
        """The loop is through: say so if it mostly waited for the loader."""
        self.position.finished = True
        if self.wait.elapsed_s > REPORTED_S and self.wait.share >= BOUND:
            log.warning(self.wait.verdict())

"""A wait for other ranks that lasts says so on stderr."""

import sys
from collections.abc import Callable

REPORT_EVERY_S = 60.0


class WaitReport:
    """Tells of one wait of a rank, each minute that it lasts.

    Args:
        start_s: when the wait began, of the clock that `look` is given.
    """

    def __init__(self, rank: int, start_s: float) -> None:
        self._rank = rank
        self._start_s = self._told_s = start_s

    def look(self, now_s: float, place: Callable[[], str]) -> None:
        """Say where the rank waits, and for whom, if it is time to."""
        if now_s - self._told_s > REPORT_EVERY_S:
            self._told_s = now_s
            waited_s = now_s - self._start_s
            print(
                f"torch-xdist: rank {self._rank} has waited {waited_s:.0f} s in {place()}",
                file=sys.stderr,
                flush=True,
            )

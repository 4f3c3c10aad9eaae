"""How often the head judges its job: at once where something happened, else in a share of its time.

A judgement looks at every rank. Thousands of ranks beat every moment, and beats alone change a
verdict only as time goes by.
"""

import time
from collections.abc import Callable

# Of the head's time, at most, for judging what only beats and lines have changed.
_SHARE = 0.05
_MOST_S = 0.5
ROUTINE = ("beats", "log")


class Pace:
    """Says whether a judgement is due.

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._next_s, self._has_news = 0.0, True

    def heard(self, op: str) -> None:
        """A message of this kind has come."""
        if op not in ROUTINE:
            self._has_news = True

    def keep(self, judge: Callable[[], None]) -> None:
        """Judge, if that is due."""
        began_s = self._monotonic()
        if not self._has_news and began_s < self._next_s:
            return
        self._has_news = False
        judge()
        ended_s = self._monotonic()
        self._next_s = ended_s + min(_MOST_S, (ended_s - began_s) / _SHARE)

"""How often the head judges its job: at once where something happened, else in a share of its time.

A judgement looks at every rank. Thousands of ranks beat every moment, and beats alone change a
verdict only as time goes by. Thousands of ranks also arrive and end one by one: judged after each
of them, a job of n ranks would be n * n looks. So news, too, get a share of the head's time, which
in a job of hundreds of ranks is never used up.
"""

import time
from collections.abc import Callable

# Of the head's time, at most, for judging what only beats and lines have changed; what happened.
_SHARE, _NEWS_SHARE = 0.03, 0.5
_MOST_S = 5.0
ROUTINE = ("beats", "log")


class Pace:
    """Says whether a judgement is due.

    Args:
        monotonic: seconds.
        worked: seconds of the processor, of this thread: a busy machine makes no judgement dearer.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._monotonic, self._worked = monotonic, worked
        self._next_s = self._next_after_news_s = 0.0
        self._has_news = True

    def heard(self, op: str) -> None:
        """A message of this kind has come."""
        if op not in ROUTINE:
            self._has_news = True

    def wait_s(self, most_s: float) -> float:
        """How long the head may wait for another message: news are judged when they are due."""
        if not self._has_news:
            return most_s
        return min(most_s, max(0.0, self._next_after_news_s - self._monotonic()))

    def keep(self, judge: Callable[[], None]) -> None:
        """Judge, if that is due."""
        due_s = self._next_after_news_s if self._has_news else self._next_s
        if self._monotonic() < due_s:
            return
        self._has_news = False
        worked_s = self._worked()
        judge()
        cost_s, ended_s = self._worked() - worked_s, self._monotonic()
        self._next_s = ended_s + min(_MOST_S, cost_s / _SHARE)
        self._next_after_news_s = ended_s + cost_s * (1 / _NEWS_SHARE - 1)

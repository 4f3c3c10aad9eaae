"""Letters from one rank to another: sent without waiting, taken in the order they were sent."""

import threading
import time
from collections import deque
from collections.abc import Callable

from torch_xdist.collectives.errors import RankLostError

_LOOK_S = 0.25


class MessageQueue:
    """What other ranks have sent to this one."""

    def __init__(self) -> None:
        self._letters: dict[str, deque[tuple[int, bytes]]] = {}
        self._changed = threading.Condition()

    def put(self, source: int, subject: str, payload: bytes) -> None:
        """Leave a letter."""
        with self._changed:
            self._letters.setdefault(subject, deque()).append((source, payload))
            self._changed.notify_all()

    def take(
        self, source: int | None, subject: str, ended: Callable[[int], bool]
    ) -> tuple[int, bytes]:
        """The oldest letter on `subject` from `source` (None: from anybody), and who sent it.

        Raises:
            RankLostError: the source ended, and its letter is not here.
        """
        start_s = time.monotonic()
        with self._changed:
            while True:
                for letter in self._letters.get(subject, ()):
                    if source is None or letter[0] == source:
                        self._letters[subject].remove(letter)
                        return letter
                # Ended is asked before one more look: its last letter may have come meanwhile.
                if source is not None and time.monotonic() - start_s > 2 * _LOOK_S:
                    self._refuse_if_ended(source, subject, ended)
                self._changed.wait(_LOOK_S)

    def _refuse_if_ended(self, source: int, subject: str, ended: Callable[[int], bool]) -> None:
        if ended(source) and not any(s == source for s, _ in self._letters.get(subject, ())):
            raise RankLostError(
                f"recv: rank {source} has ended and sent nothing more on {subject!r}; every recv "
                f"needs its send; look at the output of rank {source}"
            )

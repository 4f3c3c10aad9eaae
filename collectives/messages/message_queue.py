"""Messages from other ranks: sent without waiting, taken in the order they were sent."""

import threading
import time
from collections import deque
from collections.abc import Callable

from torch_xdist.collectives.errors import RankLostError

_LOOK_S = 0.25


class MessageQueue:
    """What other ranks have sent to this one."""

    def __init__(self) -> None:
        self._messages: dict[str, deque[tuple[int, bytes]]] = {}
        self._changed = threading.Condition()

    def put(self, source: int, tag: str, payload: bytes) -> None:
        """A message came."""
        with self._changed:
            self._messages.setdefault(tag, deque()).append((source, payload))
            self._changed.notify_all()

    def take(
        self, source: int | None, tag: str, has_ended: Callable[[int], bool]
    ) -> tuple[int, bytes]:
        """The oldest message under `tag` from `source` (None: from anybody), and who sent it.

        Raises:
            RankLostError: the source ended, and its message is not here.
        """
        start_s = time.monotonic()
        with self._changed:
            while True:
                found = self._taken(source, tag)
                if found is not None:
                    return found
                # Ended is asked before one more look: its last message may have come meanwhile.
                is_over = time.monotonic() - start_s > 2 * _LOOK_S and (
                    source is not None and has_ended(source)
                )
                found = self._taken(source, tag)
                if found is not None:
                    return found
                if is_over:
                    raise RankLostError(
                        f"recv: rank {source} has ended and sent nothing more on {tag!r}; every "
                        f"recv needs its send; look at the output of rank {source}"
                    )
                self._changed.wait(_LOOK_S)

    def taken(self, source: int | None, tag: str) -> tuple[int, bytes] | None:
        """As `take`, without waiting: None where there is no such message."""
        with self._changed:
            return self._taken(source, tag)

    def _taken(self, source: int | None, tag: str) -> tuple[int, bytes] | None:
        waiting = self._messages.get(tag, ())
        found = next((m for m in waiting if source is None or m[0] == source), None)
        if found is not None:
            self._messages[tag].remove(found)
            if not self._messages[tag]:
                del self._messages[tag]
        return found

"""The newest events of a job, for viewers that come later; what is older is only counted."""

import collections
from collections.abc import Iterator

from torch_xdist.launcher.viewing import events
from torch_xdist.launcher.viewing.background import dropped_text
from torch_xdist.launcher.viewing.events import Facts

_MOST_BYTES = 4 << 20

Event = tuple[str, Facts]


class History:
    """Events in the order in which they were shown; of the beats the last one alone."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: collections.deque[Event] = collections.deque()
        self._lost_lines = 0
        self._beats: Event | None = None
        self._attempt: Event | None = None

    def add(self, event: str, facts: Facts) -> None:
        """Keep it, and let the oldest ones go where there is no room."""
        if event == "beats":
            self._beats = event, facts
            return
        if event == "attempt":
            self._attempt = event, facts
        self._kept.append((event, facts))
        self._bytes += events.size(event, facts)[0]
        while self._bytes > self._most_bytes and len(self._kept) > 1:
            size, lines = events.size(*self._kept.popleft())
            self._bytes -= size
            self._lost_lines += lines

    def last(self, lines: int | None) -> Iterator[Event]:
        """What a viewer is told first: so many lines of ranks and what stands between them.

        Args:
            lines: None: all that is kept.
        """
        if self._attempt is not None:
            yield self._attempt
        if lines is None:
            if self._lost_lines:
                yield "note", {"text": dropped_text(self._lost_lines).rstrip("\n")}
            yield from self._kept
        elif lines:
            yield from self._newest(lines)
        if self._beats is not None:
            yield self._beats

    def _newest(self, lines: int) -> list[Event]:
        found: list[Event] = []
        for event, facts in reversed(self._kept):
            if event == "log":
                facts = {**facts, "lines": facts["lines"][-lines:]}
                lines -= len(facts["lines"])
            found.append((event, facts))
            if lines <= 0:
                break
        return found[::-1]

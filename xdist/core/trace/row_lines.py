"""Where the rows of one tape were recorded: the user's line of each, and nothing more.

Looking for it costs a walk over the stack for each row, so only a tape now and then is recorded so
(`recompilations` asks for it); `notes` has all that users ask for by variables.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from torch_xdist.core.trace.trace import Tape
from torch_xdist.core.trace.user_frames import user_line


class LinedEntries(list[Any]):
    """The entries of a tape; `lines` says where each was recorded, by slot."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[int, str] = {}

    def append(self, entry: Any) -> None:
        line, slot = sys.intern(user_line()), len(self)
        super().append(entry)
        self.lines[slot] = line

    def __iadd__(self, entries: Iterable[Any]) -> "LinedEntries":  # type: ignore[misc]
        line, slot = sys.intern(user_line()), len(self)
        super().__iadd__(entries)
        self.lines[slot] = line
        return self


def begin(tape: Tape) -> None:
    """From its first row on, note where the rows of this thread's tape are recorded."""
    lined = LinedEntries()
    # Nothing comes between these, see `trace`.
    if not tape.entries and tape.entries.__class__ is list:
        tape.entries = lined


def lines_of(entries: Sequence[Any]) -> dict[int, str] | None:
    """The line of each row, by slot; None where that was not noted."""
    return entries.lines if isinstance(entries, LinedEntries) else None

"""Notes: where each row was recorded, and in which of the user's named blocks.

Taken where XLA_IR_DEBUG or XLA_HLO_DEBUG asks for it, or `set_noting`. A tape then has entries of a
class that notes what is appended; other tapes have a plain list, so that recording pays nothing.
Texts of graphs show notes, and programs hand them to XLA as the metadata of operations.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch_xdist import settings
from torch_xdist.core.trace.user_frames import Place, all_places, told


class Note(NamedTuple):
    """What is known of a row.

    Attributes:
        scope: the blocks it was recorded in, such as `forward.1.conv1.2`; "" outside of them.
        stack: all frames, innermost first.
        prefix: what the user wants before its name (`set_prefix`).
        depth: how many of the outermost frames are told then.
    """

    scope: str
    stack: tuple[Place, ...]
    prefix: str | None = None
    depth: int = 0

    @property
    def places(self) -> tuple[Place, ...]:
        """The frames that are told, innermost first."""
        if self.prefix is None:
            return told(self.stack)
        return self.stack[-self.depth :] if self.depth else ()

    def name(self, op: str) -> str:
        """What the operation is called: its operator behind the block it belongs to."""
        if self.prefix is not None:
            return self.prefix + op
        return f"{self.scope.replace(':', '_')}/{op}" if self.scope else op


class NotedEntries(list[Any]):
    """The entries of a tape, each with a note."""

    __slots__ = ("notes",)

    def __init__(self, entries: Iterable[Any] = ()) -> None:
        super().__init__(entries)
        self.notes: dict[int, Note] = {}

    def append(self, entry: Any) -> None:
        note, slot = Note(current_scope(), all_places()), len(self)
        super().append(entry)
        self.notes[slot] = note

    def __iadd__(self, entries: Iterable[Any]) -> "NotedEntries":  # type: ignore[misc]
        note, slot = Note(current_scope(), all_places()), len(self)
        super().__iadd__(entries)
        self.notes[slot] = note
        return self


class NotedTuple(tuple[Any, ...]):
    """The entries of a recorded function, with notes; equal to a plain tuple of the same."""

    notes: dict[int, Note]


class Asked:
    """Whether notes are taken; None until a device is used."""

    is_noting: bool | None = None


def is_noting() -> bool:
    """Whether notes are taken from the next tape on."""
    asked = Asked.is_noting
    return settings.asks_for_notes() if asked is None else asked


def decide() -> None:
    """A device is used: from here on the variables are not read any more."""
    Asked.is_noting = is_noting()


def set_noting(asked: bool) -> None:
    """Whether notes are taken from the next tape on."""
    Asked.is_noting = bool(asked)


def notes_of(entries: Sequence[Any]) -> dict[int, Note]:
    """The notes of a tape's entries, by slot; none where none were taken."""
    return entries.notes if isinstance(entries, NotedEntries | NotedTuple) else {}


def with_notes_of(source: Sequence[Any], entries: Sequence[Any]) -> tuple[Any, ...]:
    """The entries, which stand in the slots they have in `source`, with the notes from there."""
    notes = notes_of(source)
    if not notes:
        return tuple(entries)
    noted = NotedTuple(entries)
    noted.notes = notes
    return noted


def carry(source: Sequence[Any], slot: int, target: Sequence[Any], place: int) -> None:
    """Let an entry that was copied from one tape to another have the note it had there."""
    if isinstance(target, NotedEntries):
        note = notes_of(source).get(slot)
        if note is not None:
            target.notes[place] = note
        else:
            target.notes.pop(place, None)


def set_prefix(entries: Sequence[Any], slots: Iterable[int], prefix: str, depth: int) -> None:
    """Name these rows so, where they have no such name yet."""
    found = notes_of(entries)
    for slot in slots:
        note = found.get(slot)
        if note is not None and note.prefix is None:
            found[slot] = note._replace(prefix=prefix, depth=depth)


# The notes of buffers that were made while notes were taken, by the buffer's id.
_of_buffers: dict[int, tuple[weakref.ref[Any], Note]] = {}


def note_buffer(buffer: Any) -> None:
    """A buffer was made here; for texts of graphs that read it."""
    key = id(buffer)
    gone = weakref.ref(buffer, lambda _: _of_buffers.pop(key, None))
    _of_buffers[key] = gone, Note(current_scope(), all_places())


def note_of_buffer(buffer: Any) -> Note | None:
    """Where a buffer was made, if that was noted."""
    found = _of_buffers.get(id(buffer))
    return found[1] if found is not None and found[0]() is buffer else None


class _Scopes(threading.local):
    """The blocks this thread is in.

    Attributes:
        open: the name of each, with the number for the next block beside it.
        next_number: of the next block in the innermost one.
    """

    def __init__(self) -> None:
        self.open: list[tuple[str, int]] = []
        self.next_number = 1


_scopes = _Scopes()


def current_scope() -> str:
    """The blocks this thread is in, outermost first, joined by dots; "" outside of all."""
    return ".".join([name for name, _ in _scopes.open]) if _scopes.open else ""


def enter_scope(name: str) -> None:
    """Begin a named block. It gets a number, counted anew in each block."""
    number = _scopes.next_number
    _scopes.open.append((f"{name}.{number}", number + 1))
    _scopes.next_number = 1


def leave_scope() -> None:
    """End the innermost block."""
    _, _scopes.next_number = _scopes.open.pop()


def reset_scopes() -> None:
    """Number blocks from one again; the caller is in none."""
    _scopes.next_number = 1

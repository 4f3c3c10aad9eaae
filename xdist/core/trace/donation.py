"""Which buffers a program may write its results into, beside those that nobody holds any more.

A user may give a buffer away that tensors still hold; the next program that reads it ends it. And
a run may be told to take nothing but what was given away so.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax


class _Now(threading.local):
    """What this thread's next runs may take.

    Attributes:
        unreferenced: buffers that only the tape holds.
        given: buffers that the user gave away.
    """

    unreferenced = True
    given = True


class _Config:
    """Whether graphs that run by their hash take what was given away."""

    is_on = False


NOW = _Now()
CONFIG = _Config()
# By id.
_GIVEN: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()
# Whose memory another framework was given: XLA must not write to it. By id.
_EXPORTED: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()
# Which values of several tensors have since one was copied to another. By id.
_SHARED: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()
# Whether one of the first two ever had any: each cut asks, and their length is a function of
# Python's.
_has_any = False


def export(buffer: jax.Array) -> jax.Array:
    """The buffer, whose memory is from now on never given away."""
    global _has_any
    _has_any = True
    _EXPORTED[id(buffer)] = buffer
    return buffer


def share(buffer: jax.Array) -> None:
    """Note that several values have a buffer."""
    _SHARED[id(buffer)] = buffer


def is_shared(buffer: jax.Array) -> bool:
    """Whether several values had a buffer; maybe one alone has it now."""
    return _SHARED.get(id(buffer)) is buffer


def copy_of(buffer: Any, there: jax.Device) -> Any:
    """A copy in memory of its own, for which nothing is compiled; None of a buffer without any."""
    if isinstance(buffer, jax.Array):
        return jax.device_put(buffer, there, may_alias=False)
    copy = getattr(buffer, "copy", None)
    return copy() if copy is not None else None


def without_exported(mask: list[bool], buffers: Sequence[jax.Array]) -> list[bool]:
    """The mask, which takes nothing whose memory another framework has."""
    if not _has_any or not _EXPORTED:
        return mask
    return [give and id(b) not in _EXPORTED for give, b in zip(mask, buffers)]


def may_take(buffers: Sequence[jax.Array]) -> bool:
    """Whether nobody but this package knows of these buffers, or was promised anything of them."""
    if not _has_any or (not _EXPORTED and not _GIVEN):
        return True
    return not any(id(b) in _EXPORTED or is_given(b) for b in buffers)


def give(buffer: jax.Array, should_donate: bool) -> None:
    """Give a buffer away, or take that back."""
    global _has_any
    if should_donate:
        _has_any = True
        _GIVEN[id(buffer)] = buffer
    else:
        _GIVEN.pop(id(buffer), None)


def is_given(buffer: jax.Array) -> bool:
    """Whether the user gave a buffer away."""
    return _GIVEN.get(id(buffer)) is buffer


def is_taken_by_graphs(buffer: jax.Array) -> bool:
    """Whether a graph that runs by its hash takes a buffer."""
    return CONFIG.is_on and is_given(buffer)


@contextlib.contextmanager
def only_given(allowed: bool) -> Iterator[None]:
    """Inside it, runs of this thread take only what was given away, or nothing."""
    before = NOW.unreferenced, NOW.given
    NOW.unreferenced, NOW.given = False, allowed
    try:
        yield
    finally:
        NOW.unreferenced, NOW.given = before


def mask(unreferenced: Sequence[bool], buffers: Sequence[jax.Array]) -> list[bool]:
    """Which of the leaves' buffers a run may take.

    Args:
        unreferenced: which of them only the tape holds.
    """
    taken = list(unreferenced) if NOW.unreferenced else [False] * len(buffers)
    if _has_any and _GIVEN and NOW.given:
        taken = [take or is_given(buffer) for take, buffer in zip(taken, buffers)]
    return taken

"""Where every rank of the host is, readable by all at any time: who has started, who waits for it.

Each rank has an area of its own in one memory: its process number, a version, and two buffers that
take turns. A rank writes into the buffer that is not read now, then counts its version up
(`futex.add_and_wake`, which orders the two); a reader whose version stayed the same while it read
has read one status whole. Written only by a rank that has waited for a while, so that a collective
that goes well pays nothing.
"""

import mmap
import os
import struct
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torch_xdist.collectives.shared_memory import futex

_AREA_BYTES = 2048
_PID, _VERSION, _BUFFERS, _BUFFER_BYTES = 0, 64, 128, 960
_HEAD = struct.Struct("=BIHH")  # has failed, group, bytes of the set of ranks, bytes of the call


class Status(NamedTuple):
    """What one rank says of itself.

    Attributes:
        version: changes whenever it says something.
        call: the call it waits in; "" where it waits for nobody.
        ranks: for whom it waits; empty: for anybody.
        group: a number of the group that calls; 0: of none.
        has_failed: whether the call ended with an error, and nothing was called since.
    """

    version: int
    call: str = ""
    ranks: frozenset[int] = frozenset()
    group: int = 0
    has_failed: bool = False


def size_bytes(world_size: int) -> int:
    """How much memory the statuses of a world take."""
    return world_size * _AREA_BYTES


class Statuses:
    """One rank's view of the statuses of all.

    Args:
        memory: shared by all ranks, `size_bytes(...)` long, zero at the start.
    """

    def __init__(self, memory: mmap.mmap, rank: int) -> None:
        self._rank = rank
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("I")
        self._address = np.frombuffer(memory, np.uint8).ctypes.data
        self._lock = threading.Lock()
        self._own = Status(0)
        self._words[rank * _AREA_BYTES // 4 + _PID] = os.getpid()

    def note_pid(self, rank: int, pid: int) -> None:
        """Say which process a rank is that does not write here itself."""
        self._words[rank * _AREA_BYTES // 4 + _PID] = pid

    def pid(self, rank: int) -> int:
        """The process number of a rank, for messages; 0 until it has started."""
        return self._words[rank * _AREA_BYTES // 4 + _PID]

    def has_started(self, rank: int) -> bool:
        """Whether a rank has come so far; its server answers since."""
        return self.pid(rank) != 0

    def versions(self) -> list[int]:
        """By rank: a number that changes whenever it says something."""
        return [self._version(rank) for rank in range(len(self._bytes) // _AREA_BYTES)]

    def wait(self, ranks: Sequence[int], call: str, group: int = 0) -> "Wait":
        """Say that this rank waits in `call` for `ranks` (none: for anybody)."""
        self._set(Status(0, call, frozenset(ranks), group))
        return Wait(self, self._rank)

    def fail(self) -> None:
        """Say that the call this rank waits in has failed."""
        if self._own.call:
            self._set(self._own._replace(has_failed=True))

    def clear(self) -> None:
        """Say that this rank waits for nobody, if it has said anything else."""
        if self._own.call:
            self._set(Status(0))

    def _set(self, status: Status) -> None:
        members = sum(1 << rank for rank in status.ranks)
        told = members.to_bytes(-(-members.bit_length() // 8), "little")
        text = _cut(status.call, _BUFFER_BYTES - _HEAD.size - len(told))
        data = _HEAD.pack(status.has_failed, status.group, len(told), len(text)) + told + text
        with self._lock:
            buffer = self._buffer(self._rank, self._version(self._rank) + 1)
            self._bytes[buffer : buffer + len(data)] = data
            futex.add_and_wake(self._address + self._rank * _AREA_BYTES + _VERSION)
            self._own = status

    def of(self, rank: int) -> Status:
        """What a rank says; nothing while it is being changed."""
        version = self._version(rank)
        futex.fence()
        buffer = self._buffer(rank, version)
        data = bytes(self._bytes[buffer : buffer + _BUFFER_BYTES])
        futex.fence()
        if self._version(rank) != version:
            return Status(self._version(rank))
        has_failed, group, set_bytes, text_bytes = _HEAD.unpack_from(data)
        text = data[_HEAD.size + set_bytes :][:text_bytes].decode(errors="replace")
        members = int.from_bytes(data[_HEAD.size :][:set_bytes], "little")
        ranks = frozenset(r for r in range(members.bit_length()) if members >> r & 1)
        return Status(version, text, ranks, group, bool(has_failed))

    def _version(self, rank: int) -> int:
        return self._words[(rank * _AREA_BYTES + _VERSION) // 4]

    @staticmethod
    def _buffer(rank: int, version: int) -> int:
        return rank * _AREA_BYTES + _BUFFERS + (version & 1) * _BUFFER_BYTES


class Wait:
    """One wait of this rank, during which it looks at what the others say."""

    def __init__(self, statuses: Statuses, rank: int) -> None:
        self._statuses, self._rank = statuses, rank
        self._before = statuses.versions()
        self._seen: dict[int, int] = {}

    def waits_for_us(self, rank: int) -> Status | None:
        """What `rank` says, if it waits for this one (or for anybody) and did so at the last look.

        Also where its call has failed, if that was during this wait: it will not come then. What
        failed before may have gone on since.
        """
        status = self._statuses.of(rank)
        seen, self._seen[rank] = self._seen.get(rank), status.version
        is_old = status.has_failed and status.version == self._before[rank]
        concerns_us = not status.ranks or self._rank in status.ranks
        if status.call and seen == status.version and concerns_us and not is_old:
            return status
        return None


def _cut(text: str, most_bytes: int) -> bytes:
    """The text as bytes, shortened between two characters."""
    return text.encode(errors="replace")[:most_bytes].decode(errors="ignore").encode()

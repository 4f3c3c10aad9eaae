"""A rank's barriers on their way to another host: how they are written to a wire, and read there.

A barrier is a head, the note that the rank has left in its page, and those bytes of its slot that
somebody of the host needs. It needs no answer: a rank comes to barrier b + 1 only when all have
come to b, so its slot there is free. So who reads a wire never waits, and who writes never waits
for long.
"""

import contextlib
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torch_xdist.collectives.hosts import wires
from torch_xdist.collectives.shared_memory.segment import KINDS, NOTE_BYTES, Segment, Span

_HEAD = struct.Struct("!BHI")  # kind, ranges, bytes of the note or the reason
_RANGE = struct.Struct("!II")
_BARRIER, _FAILED = 0, 1
_LOOK_MS = 250
_MOST_REASON_BYTES = 2**14


class Wire:
    """The end of the rank whose barriers it carries.

    Attributes:
        rank: who reads it.
        is_dead: nothing arrives any more. That its reader has ended is found out elsewhere.
    """

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank, self._sock, self.is_dead = rank, sock, False

    def barrier(
        self, note: np.ndarray, slot: np.ndarray, ranges: Sequence[Span], look: Callable[[], None]
    ) -> None:
        """Send a barrier; `look` is called four times a second while the wire is full, and may
        raise. The wire is then of no use any more."""
        head = [_HEAD.pack(_BARRIER, len(ranges), note.nbytes)]
        head += [_RANGE.pack(*span) for span in ranges]
        self._send([b"".join(head), note, *[slot[start:stop] for start, stop in ranges]], look)

    def failed(self, kind: str, told: str) -> None:
        """Say that the rank has failed, if that can be said at once."""
        reason = f"{kind} {told}".encode(errors="replace")[:_MOST_REASON_BYTES]

        def give_up() -> None:
            raise ConnectionAbortedError

        with contextlib.suppress(OSError):
            self._send([_HEAD.pack(_FAILED, 0, len(reason)) + reason], give_up)

    def _send(self, pieces: Sequence[Any], look: Callable[[], None]) -> None:
        if self.is_dead:
            return
        left = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        try:
            while left:
                try:
                    sent = self._sock.sendmsg(left[:64], (), socket.MSG_DONTWAIT)
                except (BlockingIOError, InterruptedError):
                    self._wait(look)
                    continue
                while left and sent >= left[0].nbytes:
                    sent -= left.pop(0).nbytes
                if sent:
                    left[0] = left[0][sent:]
        except OSError:
            self.close()
        except BaseException:
            # Half of it is on its way.
            self.close()
            raise

    def _wait(self, look: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        if not poll.poll(_LOOK_MS):
            look()

    def close(self) -> None:
        """End it; its reader then knows that nothing comes any more."""
        self.is_dead = True
        self._sock.close()


def mirror(sock: socket.socket, segment: Segment) -> None:
    """Play a rank's part in `segment`, as its wire says, until that ends."""
    try:
        with contextlib.suppress(OSError, ValueError):
            while True:
                _play(sock, segment)
    finally:
        segment.leave()


def _play(sock: socket.socket, segment: Segment) -> None:
    kind, count, size = _HEAD.unpack(wires.exactly(sock, _HEAD.size))
    if kind == _FAILED:
        name, _, told = wires.exactly(sock, min(size, _MOST_REASON_BYTES)).decode().partition(" ")
        segment.mark_failed(name if name in KINDS else "CollectiveError", told)
        return
    if size > NOTE_BYTES:
        raise ValueError(f"a note of {size} bytes")
    head = wires.exactly(sock, count * _RANGE.size + size)
    ranges = list(_RANGE.iter_unpack(head[: count * _RANGE.size]))
    slot = segment.own_slot()
    for start, stop in ranges:
        if not start <= stop <= slot.size:
            raise ValueError(f"bytes {start} to {stop} of a slot of {slot.size}")
        wires.into(sock, slot[start:stop].data)
    segment.note = np.frombuffer(head[count * _RANGE.size :], np.uint8)
    segment.arrive()

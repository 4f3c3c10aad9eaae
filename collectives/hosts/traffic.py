"""Bytes over many wires at once, by one thread: what is to be sent, and where what comes belongs.

A wire carries what is given to it in order, in each direction. Nothing here waits for one wire
while another could go on: two ranks that both have much to send never wait for each other.
"""

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection

import numpy as np

from torch_xdist.progress import PROGRESS

_LOOK_S = 0.25
_MOST_BYTES = 2**20  # of one call of the kernel, so that no wire keeps the others waiting
Done = Callable[[], None]


class LostWire(ConnectionError):
    """The other end closed a wire, or its host is gone."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(why)
        self.rank = rank


class Wire:
    """One connection; the buffers that wait for it."""

    __slots__ = ("coming", "going", "rank", "sock")

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank, self.sock = rank, sock
        self.going: deque[tuple[memoryview, Done]] = deque()
        self.coming: deque[tuple[memoryview, Done]] = deque()


class Traffic:
    """What one rank sends and receives for one group.

    Args:
        look: called four times a second while nothing moves, with the ranks that are awaited and
            the seconds for which; raises where waiting is in vain.
    """

    def __init__(self, look: Callable[[Collection[int], float], None]) -> None:
        self._look = look
        self._busy: list[Wire] = []

    def send(self, wire: Wire, data: np.ndarray, done: Done) -> None:
        """Send this array's bytes, which must stay as they are until `done` is called."""
        self._add(wire, wire.going, data, done)

    def receive(self, wire: Wire, into: np.ndarray, done: Done) -> None:
        """Fill this array with what comes, then call `done`."""
        self._add(wire, wire.coming, into, done)

    def _add(
        self, wire: Wire, queue: deque[tuple[memoryview, Done]], data: np.ndarray, done: Done
    ) -> None:
        if not data.nbytes:
            done()
            return
        queue.append((data.reshape(-1).view(np.uint8).data, done))
        if wire not in self._busy:
            self._busy.append(wire)

    def clear(self) -> None:
        """Forget what is under way: the wires are of no use any more."""
        for wire in self._busy:
            wire.going.clear()
            wire.coming.clear()
        self._busy.clear()

    def run(self, is_done: Callable[[], bool]) -> None:
        """Let bytes move until `is_done`.

        Raises:
            LostWire: a wire has ended.
            Exception: what `look` raises.
        """
        start_s = moved_s = looked_s = time.monotonic()
        try:
            while not is_done():
                if self.pump():
                    moved_s = 0.0
                    continue
                now_s = time.monotonic()
                moved_s = moved_s or now_s
                if now_s - max(moved_s, looked_s) >= _LOOK_S:
                    looked_s = now_s
                    awaited = self._awaited()
                    PROGRESS.waits_for = awaited
                    self._look(awaited, now_s - start_s)
                self._sleep()
        finally:
            PROGRESS.waits_for = ()

    def pump(self) -> bool:
        """Move what can be moved now; whether anything could."""
        moved = False
        for wire in list(self._busy):
            if wire.coming:
                moved = self._receive(wire) or moved
            if wire.going:
                moved = self._send(wire) or moved
            if not (wire.coming or wire.going) and wire in self._busy:
                self._busy.remove(wire)
        return moved

    def _receive(self, wire: Wire) -> bool:
        view, done = wire.coming[0]
        try:
            count = wire.sock.recv_into(view, min(len(view), _MOST_BYTES))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise LostWire(wire.rank, str(error)) from None
        if not count:
            raise LostWire(wire.rank, "it was closed")
        self._advance(wire.coming, count)
        return True

    def _send(self, wire: Wire) -> bool:
        view, _ = wire.going[0]
        try:
            count = wire.sock.send(view[:_MOST_BYTES])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise LostWire(wire.rank, str(error)) from None
        self._advance(wire.going, count)
        return True

    @staticmethod
    def _advance(queue: deque[tuple[memoryview, Done]], count: int) -> None:
        view, done = queue[0]
        if count < len(view):
            queue[0] = view[count:], done
        else:
            queue.popleft()
            done()

    def _awaited(self) -> tuple[int, ...]:
        return tuple(sorted({wire.rank for wire in self._busy}))

    def _sleep(self) -> None:
        poll = select.poll()
        for wire in self._busy:
            wanted = (select.POLLIN if wire.coming else 0) | (select.POLLOUT if wire.going else 0)
            poll.register(wire.sock, wanted)
        poll.poll(_LOOK_S * 1000)

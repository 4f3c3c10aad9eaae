"""Parcels to the shelves of all other ranks of a host, also of those that have not started yet."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.shared_memory.array_messages import ArrayMessage

_NAP_S = 0.01
_END_S = 2.0  # a process that ends closes its sockets before it counts as ended
_START_S = 300.0  # who has not started by then will not


class Delivery:
    """What one rank sends.

    Args:
        hand: (target, parcel): puts it on that rank's shelf; an OSError where nobody answers.
        is_there: whether a rank has started.
        lost: whether a rank has started and ended.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        hand: Callable[[int, ArrayMessage], None],
        is_there: Callable[[int], bool],
        lost: Callable[[int], bool],
    ) -> None:
        self._others = [other for other in range(world_size) if other != rank]
        self._hand, self._is_there, self._lost = hand, is_there, lost
        self._later: dict[int, deque[ArrayMessage]] = {}
        self._lock = threading.Lock()

    def deliver(self, parcel: ArrayMessage) -> None:
        """Put the parcel on every other rank's shelf; returns when it is on those that started.

        Raises:
            CollectiveError: a rank lives and does not take it.
        """
        for target in self._others:
            with self._lock:
                waiting = self._later.get(target)
                if waiting is None and not self._is_there(target):
                    waiting = self._later[target] = deque()
                    # Not a daemon: a rank may end before another one starts.
                    threading.Thread(target=self._deliver_later, args=(target, waiting)).start()
                if waiting is not None:
                    waiting.append(parcel.copy())
                    continue
            self._deliver(target, parcel)

    def _deliver(self, target: int, parcel: ArrayMessage) -> None:
        try:
            self._hand(target, parcel)
        except OSError as error:
            if self._ends(target):
                return
            raise CollectiveError(
                f"send(channel {parcel.channel}) of {parcel.what}: rank {target} did not take it "
                f"({error}); look at the output of rank {target}; it may hold too many messages "
                "that nobody receives"
            ) from None

    def _ends(self, target: int) -> bool:
        limit_s = time.monotonic() + _END_S
        while not self._lost(target):
            if time.monotonic() > limit_s:
                return False
            time.sleep(_NAP_S)
        return True

    def _deliver_later(self, target: int, waiting: deque[ArrayMessage]) -> None:
        limit_s = time.monotonic() + _START_S
        while not self._is_there(target) and time.monotonic() < limit_s:
            time.sleep(_NAP_S)
        while True:
            with self._lock:
                if not waiting:
                    del self._later[target]
                    return
                parcel = waiting.popleft()
            with contextlib.suppress(CollectiveError):
                self._deliver(target, parcel)
            parcel.close()

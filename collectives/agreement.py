"""Do the ranks run the same collectives? Asked before a program runs over the mesh, where a
difference would be a hang inside XLA.

A rank that runs a program for the first time posts the program's collectives and waits for those of
the others. A rank that runs a program again posts nothing at once, which would cost each step a
message; a thread posts its newest launches twice a second, so that whoever waits for it learns that
it went another way.
"""

import atexit
import json
import threading
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from torch_xdist.collectives.errors import MismatchError
from torch_xdist.collectives.segment import named

_LOOK_S = 0.5
_KEPT = 8  # a rank may launch some programs before the first one is done
# One collective: what it is (compared), and the user's file:line (shown).
Call = tuple[str, str]


class Agreement:
    """One rank's part.

    Args:
        client: the client of JAX's coordination service.
    """

    def __init__(self, rank: int, world_size: int, client: Any) -> None:
        self._rank, self._world_size, self._client = rank, world_size, client
        self._count = 0
        self._launches: deque[tuple[int, Sequence[Call]]] = deque(maxlen=_KEPT)
        self._posted = 0
        self._old = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._post_launches, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def launch(self, calls: Sequence[Call], *, is_new: bool) -> None:
        """Say that this rank now runs a program with these collectives, `is_new`: for the first
        time. Then all ranks must do the same.

        Raises:
            MismatchError: naming the ranks, and the first collective in which they differ.
        """
        self._count += 1
        self._launches.append((self._count, calls))
        if not is_new:
            return
        self._client.key_value_set_bytes(self._place(self._rank), json.dumps(calls).encode())
        found = [self._calls_of(rank) for rank in range(self._world_size)]
        # All have come to this program, so all are through with the one before.
        if self._old:
            self._client.key_value_delete(self._old)
        self._old = self._place(self._rank)
        for position, at in enumerate(zip_longest(*found)):
            if len({call and call[0] for call in at}) > 1:
                raise MismatchError(difference(self._count, position, at))

    def close(self) -> None:
        """End the thread; the client must outlive it."""
        self._stop.set()
        self._thread.join(5)

    def _place(self, rank: int) -> str:
        return f"xdist/program/{self._count}/{rank}"

    def _calls_of(self, rank: int) -> list[Call]:
        """What `rank` runs as its program of this number, new or not."""
        while True:
            try:
                place = self._place(rank)
                found = self._client.blocking_key_value_get_bytes(place, int(_LOOK_S * 1000))
                return [(what, where) for what, where in json.loads(found)]
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            launched = self._launched_by(rank)
            if self._count in launched:
                return launched[self._count]

    def _launched_by(self, rank: int) -> dict[int, list[Call]]:
        try:
            found = json.loads(self._client.key_value_try_get_bytes(f"xdist/launched/{rank}"))
        except RuntimeError:
            return {}
        return {count: [(what, where) for what, where in calls] for count, calls in found}

    def _post_launches(self) -> None:
        place = f"xdist/launched/{self._rank}"
        while not self._stop.wait(_LOOK_S):
            if self._posted != self._count:
                self._posted = self._count
                told = json.dumps(list(self._launches)).encode()
                self._client.key_value_set_bytes(place, told, allow_overwrite=True)


def difference(count: int, position: int, at: Sequence[Call | None]) -> str:
    """What is said where the ranks' collectives number `position` differ; `at` holds each rank's,
    None where it has no more."""
    groups: dict[str, list[int]] = {}
    for rank, call in enumerate(at):
        told = f"{call[0]} ({call[1]})" if call else "no more"
        groups.setdefault(told, []).append(rank)
    lines = "; ".join(f"{named(ranks)}: {told}" for told, ranks in groups.items())
    return (
        f"program #{count} with collectives: the ranks differ from collective #{position + 1} on: "
        f"{lines}; all ranks must record the same collectives in the same order with the same "
        "shapes and dtypes; look for a branch or a batch that differs between these ranks"
    )

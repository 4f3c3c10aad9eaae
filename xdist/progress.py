"""How far this rank is: read by the launcher's heartbeat, written at cuts and collectives."""

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """How far it is.

    `step` counts syncs, and rounds of loops without any, on from the step of a restored checkpoint,
    which is `resumed`.

    `collective` counts the collective rows launched, `fingerprint` and `name` are those of the last
    program with collectives and of its last collective; `where` is the user's file:line. While this
    rank waits for others that it cannot go on without, `waits_for` names them, and `waits_in` the
    call, where it is none of those collectives; `looked_s` is when it was last seen that they have
    not come, on the monotonic clock, and infinity where that is so as long as they are named.
    `starting`: this rank is in the start of its device, where it meets the others for the first
    time.
    """

    step: int = 0
    resumed: int | None = None
    collective: int = 0
    fingerprint: str = ""
    name: str = ""
    where: str = ""
    compiling: bool = False
    starting: bool = False
    waits_for: tuple[int, ...] = ()
    waits_in: str = ""
    looked_s: float = math.inf

    def resume(self, step: int) -> None:
        """Training goes on after this step: a checkpoint of it was restored."""
        self.step = self.resumed = step

    @contextlib.contextmanager
    def start(self) -> Iterator[None]:
        """Around the start of the device."""
        self.starting = True
        try:
            yield
        finally:
            self.starting = False

    @contextlib.contextmanager
    def wait(self, ranks: Iterable[int], call: str = "") -> Iterator[None]:
        """Around a wait for these ranks."""
        self.waits_for, self.waits_in = tuple(ranks), call
        try:
            yield
        finally:
            self.stop_waiting()

    def look(self, ranks: Iterable[int], now_s: float) -> None:
        """These ranks have not come yet, as a look has shown now."""
        self.waits_for, self.looked_s = tuple(ranks), now_s

    def stop_waiting(self) -> None:
        """They have come."""
        self.waits_for, self.waits_in, self.looked_s = (), "", math.inf


PROGRESS = Progress()

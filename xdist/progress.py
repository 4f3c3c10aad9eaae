"""How far this rank is: read by the launcher's heartbeat, written at cuts and collectives."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """`step` counts syncs, on from the step of a restored checkpoint, which is `resumed`.

    `collective` counts the collective rows launched, `fingerprint` and `name` are those of the last
    program with collectives and of its last collective; `where` is the user's file:line. While this
    rank waits inside a collective for others that are late, `waits_for` names them. `starting`:
    this rank is in the start of its device, where it meets the others for the first time.
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


PROGRESS = Progress()

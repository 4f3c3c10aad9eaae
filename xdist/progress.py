"""How far this rank is: read by the launcher's heartbeat, written at cuts and collectives."""

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """`step` counts syncs, `collective` the collective rows launched; `where` is file:line."""

    step: int = 0
    collective: int = 0
    fingerprint: str = ""
    where: str = ""
    compiling: bool = False


PROGRESS = Progress()

"""How far this rank is: read by the launcher's heartbeat, written at cuts and collectives."""

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """`step` counts syncs, `collective` the collective rows launched; `where` is file:line.

    `name` is the last of these collectives, as the user called it.
    """

    step: int = 0
    collective: int = 0
    fingerprint: str = ""
    name: str = ""
    where: str = ""
    compiling: bool = False


PROGRESS = Progress()

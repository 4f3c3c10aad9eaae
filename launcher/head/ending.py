"""How an attempt of a job has ended, as its head tells it."""

from dataclasses import dataclass, field

from torch_xdist.launcher.facts.records import Failure


@dataclass
class Ending:
    """How an attempt ended."""

    exit_code: int
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()
    text: str = ""
    results: dict[int, bytes] = field(default_factory=dict)
    exception: bytes = b""
    judged: bool = False
    step: int = 0
    resumed: int | None = None

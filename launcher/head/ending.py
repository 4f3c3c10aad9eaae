"""How an attempt of a job has ended, as its head tells it."""

import signal
from dataclasses import dataclass, field

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.records import Failure


@dataclass
class Ending:
    """How an attempt ended; `blamed`: the hosts that it is due to, by number, and why.

    For `fence_s` seconds ranks of hosts that were lost may still run.
    """

    exit_code: int
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()
    text: str = ""
    results: dict[int, bytes] = field(default_factory=dict)
    exception: bytes = b""
    judged: bool = False
    step: int = 0
    resumed: int | None = None
    fence_s: float = 0.0
    blamed: dict[int, str] = field(default_factory=dict)

    @classmethod
    def stopped(cls, number: int) -> "Ending":
        """By a request, as if by this signal."""
        code = ExitCode.INTERRUPTED if number == signal.SIGINT else 128 + number
        return cls(int(code), text=f"stopped by {signal.Signals(number).name}")

    @classmethod
    def out_of_time(cls, limit_s: float) -> "Ending":
        """The job has had its time."""
        return cls(int(ExitCode.TIME_LIMIT), text=f"the time limit of {limit_s:g} s has passed")

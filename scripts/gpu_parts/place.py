"""Where a part of the check runs, and how it says what it found: at once, as it finds it.

What a part told before it crashed or ran out of time is kept.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What the processes of parts print, each in a file of its own.
LOGS = Path(__file__).resolve().parents[2] / "runs" / "check_gpu"

Tell = Callable[[dict[str, Any]], None]


@dataclass
class Place:
    """A GPU, or a CPU on which the same is rehearsed with tiny sizes.

    Attributes:
        limit_s: what the part may take; what can be left out is, in good time.
    """

    tell: Tell
    rehearses: bool = False
    limit_s: float = 60.0
    started: float = field(default_factory=time.monotonic)

    @property
    def torch_device(self) -> str:
        """Where eager torch runs beside the device."""
        return "cpu" if self.rehearses else "cuda"

    @property
    def left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self.started)

    def found(self, name: str, value: Any) -> None:
        """A figure or a fact."""
        self.tell({"found": name, "value": value})

    def need(self, name: str, holds: bool, words: object = "") -> None:
        """Something that must hold; where it does not, the part has failed."""
        self.tell({"check": name, "ok": bool(holds), "words": str(words)})

    def need_on_gpu(self, name: str, holds: Callable[[], bool], words: object = "") -> None:
        """What only a GPU can show; elsewhere it is said that it was left out."""
        if self.rehearses:
            self.tell({"left_out": name, "why": "rehearsed on a CPU"})
        else:
            self.need(name, holds(), words)

    def left_out(self, name: str, why: str) -> None:
        self.tell({"left_out": name, "why": why})

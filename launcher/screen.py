"""What `xla-run` shows: the ranks' lines, its own lines, and on a terminal one live status line.

Own lines go to stderr, those of the ranks to stdout. The status line is the last line of the
terminal; every other line is written above it.
"""

import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO, cast

from torch_xdist.launcher.pump import Terminal

_CLEAR = "\r\x1b[K"
_PLAIN_EVERY_S = 60.0


def status_text(
    up: int, ranks: int, steps: Sequence[int], step_s: float | None, restarts: int, standing: str
) -> str:
    """ "4/4 ranks up, step 120, 0.21 s/step, slowest rank 2 (118), restarts 0"."""
    parts = [f"{up}/{ranks} ranks up"]
    if any(steps):
        parts.append(f"step {max(steps)}")
        if step_s is not None:
            parts.append(f"{step_s:.3g} s/step")
        slowest = min(range(len(steps)), key=lambda rank: steps[rank])
        if steps[slowest] < max(steps):
            parts.append(f"slowest rank {slowest} ({steps[slowest]})")
    elif standing:
        parts.append(standing)
    if restarts:
        parts.append(f"restarts {restarts}")
    return ", ".join(parts)


class Screen:
    """Takes the controller's events; `close` when the job is over."""

    def __init__(self, ranks: int, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._live = self._out.isatty() and self._err.isatty()
        self._ranks = ranks
        self._lock = threading.Lock()
        self._status = ""
        self._told_s = time.monotonic()
        self._last: tuple[int, float] | None = None
        self._step_s: float | None = None
        stream = cast(TextIO, _Above(self)) if self._live else self._out
        self._terminal = Terminal(stream, prefix=ranks > 1)

    def __call__(self, event: str, **facts: Any) -> None:
        match event:
            case "log":
                self._terminal.show(facts["rank"], facts["lines"])
            case "start" | "note":
                self.say(facts["text"])
            case "beats":
                self._show_status(facts)

    def say(self, text: str) -> None:
        """A line of our own."""
        self.write(text + "\n", self._err)

    def write(self, text: str, stream: TextIO | None = None) -> None:
        """Write above the status line."""
        stream = stream or self._out
        with self._lock:
            try:
                stream.write((_CLEAR if self._live else "") + text)
                stream.flush()
                if self._live and self._status:
                    self._err.write(self._status)
                    self._err.flush()
            except (OSError, ValueError):
                # A terminal that was closed must not end the job.
                return

    def close(self) -> None:
        """Write what waits, and leave no status line."""
        self._terminal.close()
        if self._live:
            self._status = ""
            self.write("")

    def _show_status(self, facts: Mapping[str, Any]) -> None:
        self._measure(max(facts["steps"], default=0))
        text = status_text(
            facts["up"],
            self._ranks,
            facts["steps"],
            self._step_s,
            facts["attempt"],
            facts["standing"],
        )
        if self._live:
            self._status = text[: shutil.get_terminal_size().columns - 1]
            self.write("")
        elif any(facts["steps"]) and time.monotonic() - self._told_s >= _PLAIN_EVERY_S:
            self._told_s = time.monotonic()
            self.say(text)

    def _measure(self, step: int) -> None:
        """Seconds per step since the last look."""
        now_s = time.monotonic()
        if self._last is not None and step > self._last[0]:
            self._step_s = (now_s - self._last[1]) / (step - self._last[0])
        if self._last is None or step != self._last[0]:
            self._last = (step, now_s)


class _Above:
    """The stream of the ranks' lines on a live terminal."""

    encoding = "utf-8"

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, text: str) -> int:
        self._screen.write(text)
        return len(text)

    def flush(self) -> None:
        return

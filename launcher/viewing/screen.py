"""What `xla-run` shows: the ranks' lines, its own lines, and on a terminal one live status line.

Own lines go to stderr, those of the ranks to stdout. Everything is written by one thread, from a
queue: a terminal that stops reading (Ctrl-S, a stalled connection) holds up nobody who shows
something. What it cannot take is dropped and counted; the log files are whole. The status line is
the last line of the terminal, every other line is written above it; there, control characters of
the ranks are left out, so that no rank can forge what another one says.
"""

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from torch_xdist.launcher.viewing.background import BackgroundWriter, dropped_text

_CLEAR = "\r\x1b[K"
_PLAIN_EVERY_S = 60.0
_CLOSE_S = 2.0
# Colours stay; cursor movements, titles and the like do not, nor do other control characters.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class Composer:
    """Makes the text that is shown of the ranks' lines: "[2] loss 0.3".

    Args:
        prefix: whether lines begin with their rank.
        timestamps: whether they begin with the time of day.
        labels: what stands for each rank; None: its number.
    """

    def __init__(
        self, prefix: bool, timestamps: bool = False, labels: Sequence[str] | None = None
    ) -> None:
        self._prefix, self._timestamps, self._labels = prefix, timestamps, labels
        self._open: tuple[int, str] | None = None  # the unfinished line that stands there

    def relabel(self, labels: Sequence[str]) -> None:
        """From now on these stand for the ranks."""
        self._labels = labels

    @property
    def is_open(self) -> bool:
        """Whether a prompt stands at the end of what was shown."""
        return self._open is not None

    def lines(self, rank: int, lines: Sequence[str], unfinished: str = "") -> str:
        """The text of new lines of a rank, and of a prompt of the one that is typed to."""
        before, self._open = self._open, None
        text = ""
        texts = [*(f"{line}\n" for line in lines), *([unfinished] if unfinished else [])]
        if before is not None and texts and before[0] == rank and texts[0].startswith(before[1]):
            # It goes on where its prompt stands, or the answer was typed.
            text, texts = texts[0][len(before[1]) :], texts[1:]
        elif before is not None:
            text = "\n"
        start = self._start(rank)
        text += "".join(start + line for line in texts)
        if unfinished:
            self._open = rank, unfinished
        elif before is not None and before[0] != rank:
            text += self._start(before[0]) + before[1]
            self._open = before
        return text

    def own(self, line: str) -> str:
        """The text of a line of the launcher's own."""
        text = f"{self._time()}{line}\n"
        if self._open is not None:
            text, self._open = f"\n{text}", None
        return text

    def _start(self, rank: int) -> str:
        label = self._labels[rank] if self._labels else rank
        return self._time() + (f"[{label}] " if self._prefix else "")

    def _time(self) -> str:
        if not self._timestamps:
            return ""
        now_s = time.time()
        return time.strftime("%H:%M:%S", time.localtime(now_s)) + f".{now_s % 1 * 1000:03.0f} "


def cleaned(text: str) -> str:
    """Text with no control characters but tabs, newlines and colours, which end with their line."""
    if "\x1b" not in text and _CONTROL.search(text) is None:
        return text
    return "\n".join(_cleaned_line(line) for line in text.split("\n"))


def _cleaned_line(line: str) -> str:
    coloured = False

    def keep(match: re.Match[str]) -> str:
        nonlocal coloured
        is_colour = _COLOUR.fullmatch(match[0]) is not None
        coloured |= is_colour
        return match[0] if is_colour else ""

    kept = _CONTROL.sub(keep, line)
    return kept + "\x1b[0m" * coloured


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
    """Takes the head's events; `close` when the job is over."""

    def __init__(
        self,
        ranks: int,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        timestamps: bool = False,
        labels: Sequence[str] | None = None,
    ) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._terminals = [stream for stream in (self._out, self._err) if stream.isatty()]
        self._live = self._out in self._terminals and self._err in self._terminals
        self._ranks = ranks
        self._status = ""
        self._is_drawn = False
        self._told_s = time.monotonic()
        self._last: tuple[int, float] | None = None
        self._step_s: float | None = None
        prefix = ranks > 1 or labels is not None
        self._composer = Composer(prefix, timestamps, labels)
        self._writer: BackgroundWriter[Callable[[], None]] = BackgroundWriter(
            lambda action: action(),
            lambda lines: lambda: self._write(dropped_text(lines), self._err),
        )

    def __call__(self, event: str, **facts: Any) -> None:
        match event:
            case "log":
                self._show_lines(facts["rank"], facts["lines"], facts.get("unfinished", ""))
            case "attempt":
                self._relabel(facts.get("labels"))
            case "start" | "note":
                self.say(facts["text"])
            case "beats":
                self._show_status(facts)

    def _relabel(self, labels: Sequence[str] | None) -> None:
        """An attempt may run on other hosts than the one before."""
        if labels is not None:
            self._ranks = len(labels)
            self._writer.offer(lambda: self._composer.relabel(labels))

    def say(self, text: str) -> None:
        """A line of our own."""
        self._writer.offer(lambda: self._write(self._composer.own(text), self._err), len(text))

    def say_end(self, warnings: Sequence[str], text: str) -> None:
        """How the job has ended."""
        for warning in warnings:
            self.say(f"warning: {warning}")
        if text:
            self.say(f"xla-run: {text.removeprefix('xla-run: ')}")

    def close(self, limit_s: float = _CLOSE_S) -> None:
        """Write what waits, at most for `limit_s`, and leave no status line."""
        self._writer.offer(self._end_status)
        self._writer.close(limit_s)

    def _show_lines(self, rank: int, lines: Sequence[str], unfinished: str) -> None:
        size = sum(map(len, lines)) + len(unfinished)
        self._writer.offer(
            lambda: self._write(self._composer.lines(rank, lines, unfinished), self._out),
            size,
            len(lines),
        )

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
            self._status = cleaned(text)
            if self._writer.is_idle():
                self._writer.offer(lambda: self._write("", self._out))
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

    # ---- on the thread that writes -------------------------------------------------------------

    def _write(self, text: str, stream: TextIO) -> None:
        """Write above the status line."""
        if not self._live:
            _put(stream, cleaned(text) if stream in self._terminals else text)
            return
        if text or not self._composer.is_open:
            _put(stream, _CLEAR * self._is_drawn + cleaned(text))
            self._is_drawn = False
        # A prompt must be the last thing there: what is typed stands behind it.
        if self._status and not self._composer.is_open:
            _put(self._err, self._status[: shutil.get_terminal_size().columns - 1])
            self._is_drawn = True

    def _end_status(self) -> None:
        if self._is_drawn:
            self._status, self._is_drawn = "", False
            _put(self._out, _CLEAR)


def _put(stream: TextIO, text: str) -> None:
    """Write; a terminal that was closed, or cannot show a character, must not end the job."""
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        with contextlib.suppress(OSError, ValueError):
            stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()
    except (OSError, ValueError):
        pass

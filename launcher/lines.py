"""Bytes of a rank's output in, complete lines of text out; pure.

Bad UTF-8 becomes replacement characters, progress bars that redraw themselves with a carriage
return are folded to what they last showed, long lines are cut. Memory stays bounded.
"""

import codecs

LONGEST = 4000


class LineCutter:
    """Cuts a stream into lines, however it is chopped.

    Args:
        longest: characters of a line that are kept; what follows is counted and dropped.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._longest = longest
        self._line = ""
        self._cut = 0
        self._bar = ""  # what the line showed before its last carriage return

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends."""
        return self._text(self._decoder.decode(data))

    def finish(self) -> list[str]:
        """The end of the stream: what is left counts as a line."""
        lines = self._text(self._decoder.decode(b"", final=True))
        last = self._complete()
        return [*lines, last] if last else lines

    def shown(self) -> str:
        """What stands in the unfinished line now: a prompt, or the state of a progress bar."""
        return self._folded()

    def _text(self, text: str) -> list[str]:
        first, *rest = text.split("\n")
        self._append(first)
        if not rest:
            return []
        lines = [self._complete()]
        *whole, last = rest
        if "\r" not in text and max(map(len, whole), default=0) <= self._longest:
            lines += whole
        else:
            for line in whole:
                self._append(line)
                lines.append(self._complete())
        self._append(last)
        return lines

    def _append(self, text: str) -> None:
        """Add to the unfinished line; a carriage return starts its next state."""
        first, *states = text.split("\r")
        self._keep(first)
        for state in states:
            self._bar = self._folded()
            self._line, self._cut = "", 0
            self._keep(state)

    def _keep(self, text: str) -> None:
        room = self._longest - len(self._line)
        self._line += text[:room]
        self._cut += max(0, len(text) - room)

    def _folded(self) -> str:
        """What the line shows: its newest state, or the one before where that is blank.

        So a carriage return before the line's end changes nothing.
        """
        if self._bar and not self._line.strip():
            return self._bar
        return self._line + (f" ... [{self._cut} more characters in the log]" * bool(self._cut))

    def _complete(self) -> str:
        line = self._folded()
        self._line, self._bar, self._cut = "", "", 0
        return line

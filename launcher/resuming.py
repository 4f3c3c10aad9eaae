"""How a stream goes on over another connection: one side asks for it, the other one grants it.

Who asks has made the connection, and says what it is known by, the number of its try, and how many
messages have come to it; the other side answers with its own count. A later try is always the one
that holds: a connection may be slower than the next one.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.pipe_stream import PipeStream

_MOST_TEXT = 2000


class Asking:
    """The side that makes connections.

    Args:
        known: what the other side knows it by.
    """

    def __init__(self, stream: PipeStream, known: Mapping[str, Any]) -> None:
        self._stream, self._known, self._tries = stream, known, 0

    def over(self, line: Connection, limit_s: float) -> bool:
        """Whether the stream goes on over this connection, which then belongs to it.

        The stream is given up where the other side refuses it, or lacks what is not kept any more.

        Raises:
            OSError, FrameError, KeyError, TypeError, ValueError: the connection is of no use.
        """
        self._tries += 1
        known = {**self._known, "try": self._tries}
        line.say({"op": "resume", **known, "came": self._stream.suspend()})
        answer = line.first(limit_s)
        if answer is None:
            raise OSError("no answer")
        if answer.message["op"] != "resumed":
            line.close()
            text = str(answer.message["text"])[:_MOST_TEXT]
            self._stream.give_up(f"{self._stream.why}, and {text}")
            return False
        try:
            self._stream.resume(line, int(answer.message["came"]))
        except HostError as error:
            self._stream.give_up(str(error))
        return True


class Granting:
    """The side that is come to, once it knows who asks."""

    def __init__(self, stream: PipeStream) -> None:
        self._stream = stream
        self._turn, self._tries = threading.Lock(), 0

    def over(self, line: Connection, told: Mapping[str, Any]) -> None:
        """Go on over another connection, on which `told` has come.

        Raises:
            OSError: that connection is broken, or older than the one there is.
            HostError: the other side cannot be told what it has missed; the stream is given up.
            KeyError, TypeError, ValueError: it does not ask as it should.
        """
        number, came = int(told["try"]), int(told["came"])
        with self._turn:
            if number <= self._tries:
                raise OSError("there is a newer connection")
            self._tries = number
            line.say({"op": "resumed", "came": self._stream.suspend()})
            try:
                self._stream.resume(line, came)
            except HostError as error:
                self._stream.give_up(str(error))
                raise


class Absence:
    """Tells once that a connection is lost, and once that the other side is back.

    Args:
        name: of the other side.
        waits: what is done meanwhile, up to a limit: "waiting up to".
        say: shows a line.
    """

    def __init__(self, stream: PipeStream, name: str, waits: str, say: Callable[[str], None]):
        self._stream, self._name, self._waits, self._say = stream, name, waits, say
        self._is_told = False

    def lost(self, why: str) -> None:
        """There is trouble with the connection; perhaps it is gone."""
        if self._stream.line is None and not self._is_told and not self._stream.is_over:
            self._is_told = True
            waits = f"{self._waits} {self._stream.left_s():.0f} s"
            self._say(f"connection to {self._name} lost ({why}), {waits}")

    def over(self, unheard_s: float) -> None:
        """There is a connection again, after so long without a word."""
        if self._is_told:
            self._is_told = False
            self._say(f"{self._name} is back after {unheard_s:.1f} s")


class Returning(ABC):
    """Makes connections for a stream that has none, one after the other, on a thread of its own.

    Args:
        name, waits, say: as of `Absence`.
        tries_s: how long each try may take; the last one is that of all further ones.
        pauses_s: the same, of the times between them.
    """

    def __init__(
        self,
        stream: PipeStream,
        name: str,
        waits: str,
        say: Callable[[str], None],
        tries_s: Sequence[float],
        pauses_s: Sequence[float],
    ) -> None:
        self._stream, self._absence = stream, Absence(stream, name, waits, say)
        self._tries_s, self._pauses_s = tries_s, pauses_s
        self._turn = threading.Lock()
        self._is_running = self._is_stopped = False

    def try_for(self, why: str) -> None:
        """There is trouble with the connection: see that there is another one, on a thread."""
        self._absence.lost(why)
        with self._turn:
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, daemon=True, name="return").start()

    @abstractmethod
    def _once(self, limit_s: float) -> bool:
        """Whether there is a connection again; where there can be none, the stream is over."""

    def _run(self) -> None:
        number = 0
        while self._goes_on():
            since_s = time.monotonic() - self._stream.unheard_s()
            if self._once(self._tries_s[min(number, len(self._tries_s) - 1)]):
                self._absence.over(time.monotonic() - since_s)
                number = 0
            else:
                time.sleep(self._pauses_s[min(number, len(self._pauses_s) - 1)])
                number += 1

    def _goes_on(self) -> bool:
        with self._turn:
            self._is_running = self._stream.needs_line and not self._is_stopped
            return self._is_running

"""The head's way back to an agent behind a command such as ssh, where the connection is lost.

The command is started anew, as for the agent itself; what it runs there is a relay to the agent,
which listens for it (`on_host/reconnection/resumption.py`). The secret by which the agent knows its
head goes over the command's stdin.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence

from torch_xdist.launcher.backends.last_word import LastWord
from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.resuming import Asking, Returning
from torch_xdist.system import piped
from torch_xdist.system.errors import FrameError
from torch_xdist.system.piped import Piped
from torch_xdist.system.process import Child

_MODULE = "torch_xdist.launcher.on_host.reconnection.relay"
_PAUSES_S = (0.2, 0.5, 1.0)
_REFUSED = b"Connection refused"
# A server that starts again refuses for a moment.
_REFUSALS_S = 3.0
# Of a command that has ended; what it has started may keep its stderr open.
_MOST_SAID, _SAID_S = 4096, 0.5


class ReturnToAgent(Returning):
    """One for each agent.

    Args:
        name: of the host.
        command: what reaches its host, and starts an interpreter there.
        environ: that of the command; None: that of this process.
        env: variables for the interpreter there.
        at: where the agent is found, and what it is told, as of `new_place`.
        note: shows a line.
        took: gets the process of a connection that is used now, its stderr, and its last word.
        tries_s: how long each try may take, the last one that of all further ones.
        kills_all: whether what the command has started here is to be killed with it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str] | None,
        env: Mapping[str, str],
        at: Mapping[str, str],
        stream: PipeStream,
        note: Callable[[str], None],
        took: Callable[[Child, int, LastWord], None],
        tries_s: Sequence[float],
        kills_all: bool,
    ) -> None:
        super().__init__(stream, f"host {name}", "waiting up to", note, tries_s, _PAUSES_S)
        self._command, self._environ, self._took = command, environ, took
        self._kills_all = kills_all
        argv = ["-P", "-m", _MODULE, at["name"]]
        self._first = (json.dumps({"env": dict(env), "argv": argv}) + "\n").encode()
        self._asking = Asking(stream, {"secret": at["secret"]})
        self._refused_s: float | None = None
        self._process: Child | None = None

    def stop(self) -> None:
        """Try no more: nothing that it has started is left, or is taken later."""
        with self._turn:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill(group=self._kills_all)

    def _once(self, limit_s: float) -> bool:
        """Whether there is a connection again; where there can be none, the stream is over."""
        started = self._started()
        if started is None:
            return False
        line = Connection(started.stdout, started.stdin, awaits_mark=True)
        process, said = started.process, started.stderr
        last_word = LastWord(started.stdin)
        is_back = self._goes_over(line, limit_s)
        with self._turn:
            self._process = None
            if is_back and not self._is_stopped:
                self._took(process, said, last_word)
                return True
        last_word.keep_back()
        process.kill(group=self._kills_all)
        process.wait()
        process.close()
        self._judge(said)
        return False

    def _started(self) -> Piped | None:
        with self._turn, contextlib.suppress(OSError):
            if not self._is_stopped:
                started = piped.start(self._command, self._environ)
                self._process = started.process
                return started
        return None

    def _goes_over(self, line: Connection, limit_s: float) -> bool:
        try:
            line.put(self._first)
            if line.begins(limit_s) and self._stream.needs_line:
                return self._asking.over(line, limit_s)
        except (FrameError, OSError, KeyError, TypeError, ValueError):
            pass
        line.break_off()
        return False

    def _judge(self, said: int) -> None:
        """Where its machine refuses for long enough, nothing of it is left to come back to."""
        text = piped.last_words(said, _MOST_SAID, _SAID_S)
        now_s = time.monotonic()
        if _REFUSED not in text:
            self._refused_s = None
        elif self._refused_s is None:
            self._refused_s = now_s
        elif now_s - self._refused_s >= _REFUSALS_S:
            self._stream.give_up(self._stream.why)


def new_place() -> dict[str, str]:
    """Where an agent is found again, and what it is to be told then."""
    return {"name": f"xla-run-{os.urandom(16).hex()}", "secret": os.urandom(32).hex()}

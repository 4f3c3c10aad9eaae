"""A node's way back to node 0 when the connection is lost: dials again, and goes on where it was.

It proves the job's secret as at first, and that it is the same process by what it has introduced
itself with. Node 0 lets nobody back in that it has given up, so two nodes of one number never work
at once. Where the machine of node 0 answers that nobody listens, its process has ended, and so the
job.
"""

import threading
import time
from collections.abc import Callable

from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import AuthError, HostError, PreflightError
from torch_xdist.launcher.node.dialing import Dialer
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.resuming import Asking
from torch_xdist.system.errors import FrameError

# A first packet may be lost; a slow way needs several times its own delay.
_TRIES_S = (2.0, 3.0, 5.0)
_PAUSES_S = (0.1, 0.2, 0.5, 1.0)
# A firewall that starts may refuse for a moment.
_REFUSALS = 3


class ReturnToHead:
    """One for the life of a node.

    Args:
        session: what the node has introduced itself with.
        stream: to node 0.
        say: shows a line.
    """

    def __init__(
        self,
        dialer: Dialer,
        node: int,
        session: str,
        stream: PipeStream,
        say: Callable[[str], None],
    ) -> None:
        self._dialer, self._stream, self._say = dialer, stream, say
        self._asking = Asking(stream, {"node": node, "session": session})
        self._refusals = 0
        self._is_told = False
        self._turn, self._is_running = threading.Lock(), False

    def try_for(self, why: str) -> None:
        """There is trouble with the connection: see that there is another one, on a thread."""
        if self._stream.line is None and not self._is_told and not self._stream.is_over:
            self._is_told = True
            waits = f"trying for up to {self._stream.left_s():.0f} s"
            self._say(f"connection to {self._dialer.name} lost ({why}), {waits}")
        with self._turn:
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, daemon=True, name="return").start()

    def _run(self) -> None:
        number = 0
        while self._goes_on():
            since_s = time.monotonic() - self._stream.unheard_s()
            if self._once(_TRIES_S[min(number, len(_TRIES_S) - 1)]):
                if self._is_told:
                    self._is_told = False
                    after_s = time.monotonic() - since_s
                    self._say(f"{self._dialer.name} is back after {after_s:.1f} s")
                number = 0
            else:
                time.sleep(_PAUSES_S[min(number, len(_PAUSES_S) - 1)])
                number += 1

    def _goes_on(self) -> bool:
        with self._turn:
            self._is_running = self._stream.needs_line
            return self._is_running

    def _once(self, limit_s: float) -> bool:
        """Whether there is a connection again; where there can be none, the stream is over."""
        try:
            line = Connection.over(*self._dialer.once(limit_s))
        except HostError as error:
            is_refused = isinstance(error.__cause__, ConnectionRefusedError)
            self._refusals = self._refusals + 1 if is_refused else 0
            if self._refusals >= _REFUSALS:
                self._stream.give_up(self._stream.why or str(error))
            return False
        except (AuthError, PreflightError) as error:
            self._stream.give_up(str(error))
            return False
        self._refusals = 0
        try:
            return self._asking.over(line, limit_s)
        except (FrameError, OSError, KeyError, TypeError, ValueError):
            line.break_off()
            return False

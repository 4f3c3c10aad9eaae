"""A node's way back to node 0 when the connection is lost: dials again, and goes on where it was.

It proves the job's secret as at first, and that it is the same process by what it has introduced
itself with. Node 0 lets nobody back in that it has given up, so two nodes of one number never work
at once. Where the machine of node 0 answers that nobody listens, its process has ended, and so the
job.
"""

from collections.abc import Callable

from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import AuthError, HostError, PreflightError
from torch_xdist.launcher.node.dialing import Dialer
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.resuming import Asking, Returning
from torch_xdist.system.errors import FrameError

# A first packet may be lost; a slow way needs several times its own delay.
_TRIES_S = (2.0, 3.0, 5.0)
_PAUSES_S = (0.1, 0.2, 0.5, 1.0)
# A firewall that starts may refuse for a moment.
_REFUSALS = 3


class ReturnToHead(Returning):
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
        super().__init__(stream, dialer.name, "trying for up to", say, _TRIES_S, _PAUSES_S)
        self._dialer = dialer
        self._asking = Asking(stream, {"node": node, "session": session})
        self._refusals = 0

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

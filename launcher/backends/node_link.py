"""A node that is there, as node 0 sees it, over however many connections.

Where the connection is lost the node dials again; only the process that had it is let back in, and
only until it counts as lost: what an earlier one still says comes to nobody.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

from torch_xdist.launcher.backends import introduction
from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.pipe_stream import OnMessage, PipeStream, Tell
from torch_xdist.launcher.resuming import Absence, Granting
from torch_xdist.system.errors import FrameError

# A process that lives and whose connection was ended in order is back within this time, if at all.
_ORDERLY_S = 1.5
_REFUSAL_S = 2.0
LEFT = "its stream ended"


class Link:
    """One node.

    Args:
        told: how it introduced itself.
        line: on which it did.
        warn: shows a line.
    """

    def __init__(self, told: Mapping[str, Any], line: Connection, warn: Tell) -> None:
        self.node, self.machine = int(told["node"]), str(told.get("machine"))
        self._session = str(told.get("session"))
        self.stream = PipeStream.over(line, came=1)
        self._granting = Granting(self.stream)
        name = f"{introduction.name_of(self.node)} on {self.machine}"
        self._absence = Absence(self.stream, name, "waiting up to", warn)
        self.is_leaving = False
        """Whether its machine is taken away: it takes part in no further attempt."""

    @property
    def is_cut(self) -> bool:
        """Whether it has no connection now."""
        return self.stream.line is None

    def open(self, limits: Timeouts, on_message: OnMessage, on_close: Tell) -> None:
        """Welcome it; the functions are those of `PipeStream.start`."""
        told = {"beat_s": limits.beat_s, "lost_s": limits.lost_s, "within_s": limits.reconnect_s}
        self.stream.send({"op": "welcome", **told})
        self.stream.start(
            on_message,
            on_close,
            beat_s=limits.beat_s,
            lost_s=limits.lost_s,
            within_s=limits.reconnect_s,
            orderly_s=_ORDERLY_S,
            on_trouble=self._absence.lost,
        )

    def is_of(self, told: Mapping[str, Any]) -> bool:
        """Whether it is this process that wants to come back."""
        return not self.stream.is_over and str(told.get("session")) == self._session

    def take_back(self, told: Mapping[str, Any], line: Connection) -> None:
        """Go on over another connection, on which it has asked for that; raises as `Granting`."""
        unheard_s = self.stream.unheard_s()
        self._granting.over(line, told)
        self._absence.over(unheard_s)


def refuse(line: Connection, code: ExitCode, text: str) -> None:
    """Tell it why, and end the connection; that may be broken."""
    with contextlib.suppress(OSError, FrameError):
        line.say({"op": "refused", "exit_code": int(code), "text": text})
        line.end_writing()
        # What it still says, unread, would make a reset of our end, which may overtake the text.
        while line.first(_REFUSAL_S) is not None:
            pass
    line.close()

"""What an agent does beside its loop, on threads, because a disk or a network may take its time:
it tries the way to host 0, and takes the code that is shipped.
"""

import threading
from collections.abc import Callable
from typing import Any

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.on_host import head_stream
from torch_xdist.system.frames import Message

OPS = ("reach", "ship", "contents", "unship")


class Beside:
    """The orders of a head that the loop passes on.

    Args:
        say: tells the head; from any thread.
    """

    def __init__(self, say: Callable[[Message], None]) -> None:
        self._say = say
        # A `Receiver`, in jobs that ship.
        self._receiver: Any = None

    def take(self, message: Message, blob: bytes) -> None:
        """One of `OPS`; never waits."""
        if message["op"] == "reach":
            asked = message["address"], message["limit_s"]
            threading.Thread(target=self._reach, args=asked, daemon=True).start()
            return
        if message["op"] == "ship" and self._receiver is None:
            # Other jobs need none of it, and start sooner.
            from torch_xdist.launcher.shipping.receiver import Receiver, place

            self._receiver = Receiver(place(settings.environment()), self._say)
        if self._receiver is not None:
            self._receiver.take(message, blob)

    def close(self) -> None:
        """The agent ends: what was shipped goes, unless it was to be kept."""
        if self._receiver is not None:
            self._receiver.close()

    def _reach(self, address: str, limit_s: float) -> None:
        why = head_stream.why_unreachable(address, limit_s)
        self._say({"op": "reached", "why": why})

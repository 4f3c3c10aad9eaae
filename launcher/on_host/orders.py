"""What an agent tells a rank while it runs: that all have finished, and to profile itself.

One link, two readers: the thread of the heartbeat, and after the end of the program the main
thread, which waits for the release. Never both.
"""

import contextlib
import threading

from torch_xdist.launcher.on_host.profiling.in_rank import AskedProfiles
from torch_xdist.system.frames import Link, Message


class Orders:
    """The orders that come over the link of a rank."""

    def __init__(self, link: Link) -> None:
        self._link, self._lock = link, threading.Lock()
        self._profiles = AskedProfiles(link)
        self._is_released = self._has_finished = False

    def fileno(self) -> int:
        """Readable where there is something to `look` at."""
        return self._link.fileno()

    def look(self) -> bool:
        """Obey what has come, without waiting; whether more may come to this thread."""
        with self._lock:
            if self._has_finished:
                return False
            received, is_open = self._link.read_ready()
            for frame in received:
                self._obey(frame.message)
        return is_open

    def finish(self) -> None:
        """The program is over; from now on this thread reads."""
        with self._lock:
            self._has_finished = True
        self._profiles.finish()

    def await_release(self) -> None:
        """Until the agent says that every rank has finished, or is gone. It keeps the time."""
        with contextlib.suppress(OSError):
            while not self._is_released and (received := self._link.receive()) is not None:
                self._obey(received.message)

    def _obey(self, message: Message) -> None:
        match message["op"]:
            case "release":
                self._is_released = True
            case "profile":
                self._profiles.take(message)
            case "profile_over":
                self._profiles.give_up(message)

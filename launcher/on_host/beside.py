"""What an agent does beside its loop, on threads, because a disk or a network may take its time:
it tries the way to host 0, takes the code that is shipped, and reads the end of a log. And what it
is asked of its ranks meanwhile: their profiles. It also hears when the machine is taken away.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch_xdist.launcher import log_ends
from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.on_host import head_stream
from torch_xdist.launcher.on_host.profiling import at_agent
from torch_xdist.launcher.on_host.profiling.at_agent import RankProfiles
from torch_xdist.launcher.on_host.started_rank import StartedRank
from torch_xdist.system.frames import Message

OPS = ("reach", log_ends.OP, "ship", "contents", "unship", *at_agent.OPS)

# Less than a head waits for the end of a log.
_FLUSH_S = 1.5


class Beside:
    """The orders of a head that the loop passes on.

    Args:
        say: tells the head; from any thread.
        ranks: of this host, by number.
    """

    def __init__(self, say: Callable[..., None], ranks: Mapping[int, StartedRank]) -> None:
        self._say = say
        self.profiles = RankProfiles(say, ranks)
        """Those of the ranks of this host."""
        self.log_dir = ""
        """Where the logs of the ranks are, from their start on."""
        self.flush_log: Callable[[int, float], None] = lambda rank, limit_s: None
        """Waits until the log of a rank that has ended is whole; likewise."""
        # A `Receiver`, in jobs that ship.
        self._receiver: Any = None
        # A `Watch`, on machines that a cloud may take away.
        self._notices: Any = None

    def take(self, message: Message, blob: bytes) -> None:
        """One of `OPS`; never waits."""
        match message["op"]:
            case "reach":
                self._begin(self._reach, message["address"], message["limit_s"])
            case log_ends.OP:
                self._begin(self._read_log, int(message["rank"]))
            case op if op in at_agent.OPS:
                self.profiles.take(message)
            case _:
                self._receive(message, blob)

    def _receive(self, message: Message, blob: bytes) -> None:
        if message["op"] == "ship" and self._receiver is None:
            # Other jobs need none of it, and start sooner.
            from torch_xdist.launcher.shipping.receiver import Receiver, place

            self._receiver = Receiver(place(settings.environment()), self._say)
        if self._receiver is not None:
            self._receiver.take(message, blob)

    def watch_notices(self, *, has_tpu: bool) -> None:
        """Tell the head from now on when the cloud says that it takes this machine away."""
        environ = settings.environment()
        if has_tpu or "XLA_RUN_NOTICES" in environ:
            from torch_xdist.launcher.on_host.notices import watch

            if watch.is_wanted(environ, has_tpu=has_tpu):
                self._notices = watch.Watch(environ, self._say)
                self._notices.start()

    def close(self) -> None:
        """The agent ends: what was shipped goes, unless it was to be kept."""
        self.profiles.close()
        if self._notices is not None:
            self._notices.stop()
        if self._receiver is not None:
            self._receiver.close()

    @staticmethod
    def _begin(action: Callable[..., None], *given: Any) -> None:
        threading.Thread(target=action, args=given, daemon=True).start()

    def _read_log(self, rank: int) -> None:
        self.flush_log(rank, _FLUSH_S)
        self._say(*log_ends.read(self.log_dir, rank))

    def _reach(self, address: str, limit_s: float) -> None:
        why = head_stream.why_unreachable(address, limit_s)
        self._say({"op": "reached", "why": why})

"""The agent's way to its head: one gRPC stream, on which news goes out and orders come in."""

from collections.abc import Callable, Sequence

from torch_xdist.system.frames import Message

# What may wait for a slow head before lines are left to the files.
_MOST_PENDING_BYTES = 8 << 20


class HeadStream:
    """What the agent tells the head.

    Args:
        config: the first frame from the head: its address, the token, the number of this host.
        hello: what the agent says of itself.
        post: called with every order, on a thread of gRPC, and with "lost" where the stream ends.
    """

    def __init__(
        self, config: Message, hello: Message, post: Callable[[Message, bytes], None]
    ) -> None:
        # gRPC takes 0.2 s to import; the nursery is on its way already.
        from torch_xdist.launcher.control import AgentStream

        self._shown: frozenset[int] = frozenset()
        self._unshown = 0
        self._stream = AgentStream(
            config["address"],
            config["token"],
            {**hello, "host_index": config["host_index"]},
            post,
            lambda why: post({"op": "lost", "why": why}, b""),
        )

    def send(self, message: Message, blob: bytes = b"") -> None:
        """News; queued, never dropped."""
        self._stream.send(message, blob)

    def show_lines_of(self, ranks: Sequence[int]) -> None:
        """From now on the head gets the lines of these ranks."""
        self._shown = frozenset(ranks)

    def show(self, rank: int, lines: list[str], unfinished: str) -> None:
        """Lines of a rank, on the pump's thread; what the head cannot take is only in the files."""
        if rank not in self._shown:
            return
        if self._stream.pending_bytes > _MOST_PENDING_BYTES:
            self._unshown += len(lines)
            return
        unshown, self._unshown = self._unshown, 0
        shown = {"rank": rank, "lines": lines, "unfinished": unfinished, "unshown": unshown}
        self.send({"op": "log", **shown})

    def close(self) -> None:
        """Send what is queued, then end the stream."""
        self._stream.close()

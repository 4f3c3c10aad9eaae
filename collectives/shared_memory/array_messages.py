"""Arrays that go from one rank to another of the same host, matched by the number of a channel.

A sender knows neither who receives nor when: `send` writes the array to an anonymous memory file
and leaves its descriptor, an `ArrayMessage`, in the queue of every rank. The rank that receives on
that channel takes it by sealing the file, which the kernel lets only one do and everybody sees; the
others then drop theirs. So no rank but these two has to come, or to be alive.
"""

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from torch_xdist.collectives.errors import CollectiveError, MismatchError
from torch_xdist.collectives.wait_report import WaitReport

_LOOK_S = 0.25


class ArrayMessage:
    """One array on its way.

    Args:
        what: dtype, shape and the sender's line, for messages.
        kind: dtype and shape, which the receiver's must equal.
        descriptor: of the memory file, which the message closes.
    """

    def __init__(self, source: int, channel: int, kind: str, what: str, descriptor: int) -> None:
        self.source, self.channel, self.kind, self.what = source, channel, kind, what
        self.descriptor = descriptor

    @classmethod
    def packed(
        cls, source: int, channel: int, kind: str, where: str, data: np.ndarray
    ) -> "ArrayMessage":
        """A message with a copy of these bytes."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        descriptor = os.memfd_create("torch-xdist array", flags)
        message = cls(source, channel, kind, f"{kind} ({where})" if where else kind, descriptor)
        rest, view = 0, data.data
        while rest < len(view):
            rest += os.pwrite(descriptor, view[rest:], rest)
        return message

    def copy(self) -> "ArrayMessage":
        """The same message once more: for a queue of this process, or to be delivered later."""
        again = os.dup(self.descriptor)
        return ArrayMessage(self.source, self.channel, self.kind, self.what, again)

    def is_taken(self) -> bool:
        """Whether some rank has taken it."""
        return bool(fcntl.fcntl(self.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL)

    def take(self) -> bool:
        """Make it this rank's; False where another one was sooner."""
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        except PermissionError:
            return False
        return True

    def unpack(self, into: np.ndarray) -> None:
        """Move the bytes into an array of the same length; the file is empty then."""
        rest, view = 0, into.data
        while rest < len(view):
            rest += os.preadv(self.descriptor, [view[rest:]], rest)
        os.ftruncate(self.descriptor, 0)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)


class ArrayQueue:
    """The messages that came to this rank. One thread takes at a time; any may put."""

    def __init__(self) -> None:
        self._messages: deque[ArrayMessage] = deque()
        self._changed = threading.Condition()
        self._awaited: tuple[int, Waiting] | None = None

    def put(self, message: ArrayMessage) -> None:
        """A message came; those that others took meanwhile go."""
        with self._changed:
            kept = [held for held in self._messages if not _dropped(held)]
            self._messages = deque([*kept, message])
            if self._awaited and self._awaited[0] == message.channel:
                # Before the sender goes on: else who looks at both could take both for waiting.
                self._awaited[1].came()
            self._changed.notify_all()

    def take(self, channel: int, waiting: "Waiting") -> ArrayMessage:
        """The oldest message of the channel that nobody has taken; waits for it.

        Raises:
            MismatchError: what `waiting.problem` gives, if there is no message after it either.
        """
        start_s = time.monotonic()
        refused: Exception | None = None
        with self._changed:
            self._awaited = channel, waiting
            try:
                while True:
                    message = self._taken(channel)
                    if message is not None:
                        return message
                    if refused is not None:
                        raise refused
                    if not self._changed.wait(_LOOK_S):
                        refused = waiting.problem(time.monotonic() - start_s)
            finally:
                self._awaited = None

    def _taken(self, channel: int) -> ArrayMessage | None:
        for message in [held for held in self._messages if held.channel == channel]:
            self._messages.remove(message)
            if message.take():
                return message
            message.close()
        return None


def _dropped(message: ArrayMessage) -> bool:
    if not message.is_taken():
        return False
    message.close()
    return True


class RecvStatus(Protocol):
    """What a receiver tells the other ranks, and sees of them."""

    def waits(self, call: str) -> None:
        """Say that this rank waits in this recv; "": no longer."""

    def stuck(self) -> Sequence[str]:
        """Why each of the other ranks will send nothing; empty while one of them may."""


class PointToPoint:
    """One rank's way to send and receive array messages.

    Args:
        deliver: puts a message into the queue of every other rank.
        queue: this rank's.
    """

    def __init__(
        self, rank: int, deliver: Callable[[ArrayMessage], None], queue: ArrayQueue
    ) -> None:
        self._rank, self._deliver, self._queue = rank, deliver, queue

    def send(self, channel: int, x: np.ndarray, kind: str, where: str) -> None:
        """Send an array on a channel; returns when the others have it.

        Raises:
            CollectiveError: this rank, or another, has no room for it.
        """
        data = x.reshape(-1).view(np.uint8)
        try:
            message = ArrayMessage.packed(self._rank, channel, kind, where, data)
        except OSError as error:
            raise CollectiveError(
                f"send(channel {channel}) of {kind}: rank {self._rank} has no room for one more "
                f"message ({error}); receive those that wait, or raise `ulimit -n`"
            ) from None
        try:
            self._deliver(message)
        finally:
            message.close()

    def receive(self, channel: int, out: np.ndarray, kind: str, status: RecvStatus) -> None:
        """Fill `out` with what some rank sends on the channel.

        Raises:
            MismatchError: another shape or dtype was sent, or all other ranks have ended or wait
                for this one.
        """
        call = f"recv(channel {channel}) of {kind}"
        message = self._queue.take(channel, Waiting(self._rank, channel, call, status))
        try:
            if message.kind != kind:
                raise MismatchError(
                    f"channel {channel}: rank {message.source} sent {message.what}, and rank "
                    f"{self._rank} called {call}; give recv a tensor of the shape and dtype that "
                    "is sent"
                )
            message.unpack(out.reshape(-1).view(np.uint8))
        finally:
            message.close()


class Waiting:
    """A receiver to whom nothing has come yet."""

    def __init__(self, rank: int, channel: int, call: str, status: RecvStatus) -> None:
        self._rank, self._channel, self._call, self._status = rank, channel, call, status
        self._is_said = False
        self._report = WaitReport(rank, 0.0)

    def came(self) -> None:
        """A message came."""
        self._status.waits("")
        self._is_said = False

    def problem(self, waited_s: float) -> MismatchError | None:
        """Look around: the error that ends the wait, if nothing can come any more."""
        if not self._is_said:
            self._status.waits(self._call)
            self._is_said = True
        reasons = self._status.stuck()
        if reasons:
            return MismatchError(
                f"rank {self._rank} called {self._call}, and nobody is left to send on channel "
                f"{self._channel}: {'; '.join(reasons)}; every recv needs a send on its channel"
            )
        self._report.look(waited_s, lambda: f"{self._call} for a rank to send on that channel")
        return None

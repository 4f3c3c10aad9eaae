"""How a rank reaches the servers of the other ranks of its host, and knows whether they live.

Only the kernel says that a rank has ended: its socket refuses although it has started, or so says
the pidfd of the process that listens there, taken while connected to it. A lack of descriptors, a
full queue or a slow answer is never a death.
"""

import contextlib
import hmac
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from torch_xdist.collectives.errors import (
    CollectiveError,
    JoinError,
    NoAnswerError,
    RankLostError,
)
from torch_xdist.collectives.messages import handshake
from torch_xdist.system.errors import ProcessError
from torch_xdist.system.frames import Frame, Link, Message
from torch_xdist.system.process import Process

START_S = 300.0  # who has not started by then will not
_ANSWER_S = 120.0  # a rank may be busy in C code that holds the interpreter
_END_S = 2.0  # a process that ends closes its sockets before it counts as ended
_NAP_S = 0.002
_NOTICE_S = 10.0


def address_of(job: str, rank: int, secret: bytes) -> str:
    """Where the server of a rank listens.

    The kernel allows 107 bytes, and shows them to everybody: so a digest, which nobody without the
    secret can know before.
    """
    digest = hmac.digest(secret, job.encode(), "sha256").hex()[:32]
    return f"\0torch-xdist/{os.geteuid()}/{rank}/{digest}"


class Peers:
    """The other ranks of the host.

    Args:
        job, secret: as of `address_of`.
        rank: this one.

    Attributes:
        has_started: whether a rank is known to have started; set once that can be known.
    """

    def __init__(self, job: str, rank: int, secret: bytes) -> None:
        self._job, self._rank, self._secret = job, rank, secret
        self._processes: dict[int, Process | None] = {}  # None: it has ended
        self._lock = threading.Lock()
        self._has_said = False
        self.has_started: Callable[[int], bool] = lambda rank: False

    def ask(
        self,
        rank: int,
        what: str,
        message: Message,
        *blobs: bytes,
        descriptors: tuple[int, ...] = (),
        start_s: float = START_S,
    ) -> Frame:
        """What the server of `rank` answers; waits until that rank has started.

        Args:
            what: the call, for messages, such as "rendezvous 'x'".
            start_s: how long to wait for its start.

        Raises:
            RankLostError: it has ended.
            JoinError: it did not start in time.
            NoAnswerError: it lives, and does not answer.
            StrangerError: another job's process, or another user's, listens in its place.
        """
        with self._connected(rank, what, start_s) as sock:
            link, answer = Link(sock), None
            with contextlib.suppress(ConnectionError, TimeoutError):
                sock.settimeout(_ANSWER_S)
                handshake.authenticate(
                    sock, address_of(self._job, rank, self._secret), self._secret
                )
                if link.send(message, *blobs, descriptors=descriptors):
                    answer = link.receive()
                if answer is not None and answer.message.get("waits"):
                    # For other ranks, and it looks whether they live.
                    sock.settimeout(None)
                    answer = link.receive()
        if answer is None:
            raise self._gone(rank, what) if self._ends(rank) else self._silent(rank, what)
        return answer

    def has_ended(self, rank: int) -> bool:
        """Whether `rank` has started and ended; False also where that cannot be known."""
        with self._lock:
            if rank not in self._processes and not self._find(rank):
                return False
            process = self._processes[rank]
            if process is not None and process.ended():
                process.close()
                process = self._processes[rank] = None
            return process is None

    def close(self) -> None:
        """Give back the descriptors of the other processes."""
        with self._lock:
            for process in self._processes.values():
                if process is not None:
                    process.close()
            self._processes.clear()

    @contextlib.contextmanager
    def _connected(self, rank: int, what: str, start_s: float) -> Iterator[socket.socket]:
        begun_s = time.monotonic()
        limit_s, notice_s = begun_s + start_s, begun_s + _NOTICE_S
        while True:
            has_started = self.has_started(rank)
            with self._tried(rank, what) as (sock, is_refused):
                if sock is not None:
                    yield sock
                    return
            now_s = time.monotonic()
            if has_started and is_refused:
                raise self._gone(rank, what)
            if now_s > limit_s:
                raise self._absent(rank, what, now_s - begun_s)
            if now_s > notice_s:
                notice_s += _NOTICE_S * 6
                print(f"torch-xdist: waiting for rank {rank} to start", file=sys.stderr, flush=True)
            time.sleep(min(_NAP_S + (now_s - begun_s) / 20, 0.1))

    @contextlib.contextmanager
    def _tried(self, rank: int, what: str) -> Iterator[tuple[socket.socket | None, bool]]:
        """(a connection, whether nobody listens); neither where too many wait there."""
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise CollectiveError(
                f"{what}: rank {self._rank} cannot reach rank {rank} ({error}); receive the "
                "messages that wait, or raise the limit of open files (`ulimit -n`)"
            ) from None
        with sock:
            try:
                sock.connect(address_of(self._job, rank, self._secret))
            except ConnectionRefusedError:
                yield None, True
            except BlockingIOError:
                yield None, False
            else:
                yield sock, False

    def _find(self, rank: int) -> bool:
        """Learn which process a rank is; False where that cannot be known now."""
        if rank == self._rank or not self.has_started(rank):
            return False
        try:
            with self._tried(rank, "a look at the other ranks") as (sock, is_refused):
                if sock is None and not is_refused:
                    return False
                self._processes[rank] = None if sock is None else Process.at_other_end(sock)
        except (CollectiveError, ProcessError) as error:
            if not self._has_said:
                self._has_said = True
                print(
                    f"torch-xdist: rank {self._rank} would not notice the end of rank {rank}: "
                    f"{error}",
                    file=sys.stderr,
                    flush=True,
                )
            return False
        return True

    def _ends(self, rank: int) -> bool:
        limit_s = time.monotonic() + _END_S
        while not self.has_ended(rank):
            if time.monotonic() > limit_s:
                return False
            time.sleep(_NAP_S)
        return True

    def _gone(self, rank: int, what: str) -> RankLostError:
        return RankLostError(
            f"rank {rank} has ended, while rank {self._rank} waited for it in {what}; every rank "
            f"must stay until all are done; look at the output of rank {rank}"
        )

    def _absent(self, rank: int, what: str, waited_s: float) -> JoinError:
        return JoinError(
            f"start of job {self._job!r}: rank {rank} did not come within {waited_s:.0f} s, while "
            f"rank {self._rank} waited for it in {what}; all ranks of a job must start on one host "
            f"and in one network namespace; look at rank {rank}'s output, or use "
            "XDIST_TRANSPORT=gloo"
        )

    def _silent(self, rank: int, what: str) -> NoAnswerError:
        return NoAnswerError(
            f"{what}: rank {rank} lives and does not answer rank {self._rank}; it is stopped, or "
            "has no room for one more connection, message or thread; look at the output of rank "
            f"{rank}"
        )

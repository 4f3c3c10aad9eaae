"""How the ranks of one host come to share memory, and reach the board of rank 0.

Each rank keeps a doorman, a thread behind an abstract Unix socket named by job and rank. Asked for
the memory of a group, it makes an anonymous memory file once and passes its descriptor to processes
of the same user. Nothing has a name in any file system, so nothing is left behind after a SIGKILL,
and the small /dev/shm of a container is no limit.
"""

import array
import hashlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from torch_xdist.collectives.errors import JoinError, RankLostError
from torch_xdist.collectives.messages import wire
from torch_xdist.collectives.messages.message_queue import MessageQueue
from torch_xdist.collectives.messages.rendezvous import Rendezvous
from torch_xdist.collectives.shared_memory.array_messages import ArrayMessage, ArrayQueue

_FILE, _BOARD, _MAIL, _PARCEL = "file", "board", "mail", "parcel"
_PATIENCE_S = 0.002
_NOTICE_S = 10.0


class Doorman:
    """The memory files this rank leads, its board, mailbox and shelf, served to the other ranks of
    the host."""

    def __init__(
        self, job: str, rank: int, board: Rendezvous, mailbox: MessageQueue, shelf: ArrayQueue
    ) -> None:
        self._board, self._mailbox, self._shelf = board, mailbox, shelf
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(_address(job, rank))
        self._socket.listen(256)
        # A DataLoader worker must not keep the door of a rank that died: nobody would answer.
        os.register_at_fork(after_in_child=self._socket.close)
        threading.Thread(target=self._serve, name="xdist-doorman", daemon=True).start()

    def file(self, name: str, size_bytes: int) -> int:
        """A descriptor of the memory file `name`, made at the first call; the caller closes it."""
        with self._lock:
            if name not in self._files:
                self._files[name] = os.memfd_create(name[:200], os.MFD_CLOEXEC)
                os.ftruncate(self._files[name], size_bytes)
            return os.dup(self._files[name])

    def _serve(self) -> None:
        while True:
            guest, _ = self._socket.accept()
            threading.Thread(target=self._welcome, args=(guest,), daemon=True).start()

    def _welcome(self, guest: socket.socket) -> None:
        with guest:
            try:
                _same_user(guest)
                (kind, *question), blobs = wire.receive(guest)
                if kind == _FILE:
                    self._hand_over(guest, *question)
                elif kind == _BOARD:
                    tag, ranks, rank = question
                    self._post(guest, tag, ranks, rank, blobs[0])
                elif kind == _MAIL:
                    self._mailbox.put(*question, blobs[0])  # type: ignore[call-arg]
                    wire.send(guest, "", [])
                else:
                    source, number, what, told = question
                    descriptor = _descriptor_from(guest)
                    self._shelf.put(ArrayMessage(source, number, what, told, descriptor))
                    wire.send(guest, "", [])
            except OSError as error:
                print(f"torch-xdist: a rank left at the door: {error}", file=sys.stderr)

    def _hand_over(self, guest: socket.socket, name: str, size_bytes: int) -> None:
        descriptor = self.file(name, size_bytes)
        try:
            _pass(guest, descriptor)
        finally:
            os.close(descriptor)

    def _post(
        self, guest: socket.socket, tag: str, ranks: list[int], rank: int, payload: bytes
    ) -> None:
        try:
            wire.send(guest, "", self._board.exchange(tag, tuple(ranks), rank, payload))
        except RankLostError as error:
            wire.send(guest, str(error), [])


def fetch(
    job: str,
    leader: int,
    name: str,
    size_bytes: int,
    *,
    timeout_s: float,
    lost: Callable[[], bool],
) -> int:
    """A descriptor of the memory file `name` of rank `leader`, waiting until that rank is there.

    `lost` tells whether the leader is known to have ended.

    Raises:
        JoinError: the leader did not come in time.
    """
    start_s = time.monotonic()
    notice_s = start_s + _NOTICE_S
    while True:
        try:
            return _ask(job, leader, name, size_bytes)
        except (ConnectionError, FileNotFoundError):
            waited_s = time.monotonic() - start_s
        if waited_s > timeout_s or lost():
            raise JoinError(
                f"start of job {job!r}: rank {leader} did not come within {waited_s:.0f} s; all "
                "ranks of a job must start on one host and in one network namespace; look at "
                f"rank {leader}'s output, or use XDIST_TRANSPORT=gloo"
            )
        if time.monotonic() > notice_s:
            notice_s += _NOTICE_S * 6
            print(f"torch-xdist: waiting for rank {leader} to start", file=sys.stderr, flush=True)
        time.sleep(min(_PATIENCE_S + waited_s / 20, 0.1))


def _ask(job: str, leader: int, name: str, size_bytes: int) -> int:
    with _door(job, leader) as door:
        wire.send(door, [_FILE, name, size_bytes], [])
        return _descriptor_from(door)


def _pass(peer: socket.socket, descriptor: int) -> None:
    passed = array.array("i", [descriptor])
    peer.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])


def _descriptor_from(peer: socket.socket) -> int:
    _, ancillary, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("i")))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return struct.unpack("i", data[:4])[0]
    raise ConnectionResetError("the other end of a local socket passed no file")


def post(
    job: str, keeper: int, tag: str, ranks: tuple[int, ...], rank: int, payload: bytes
) -> list[bytes]:
    """`Rendezvous.exchange` on the board of rank `keeper`.

    Raises:
        RankLostError: the keeper, or one of `ranks`, has ended.
    """
    try:
        with _door(job, keeper) as door:
            wire.send(door, [_BOARD, tag, list(ranks), rank], [payload])
            problem, payloads = wire.receive(door)
    except (ConnectionError, FileNotFoundError) as error:
        raise RankLostError(
            f"rank {keeper} has ended, while rank {rank} waited in rendezvous {tag!r} ({error}); "
            f"every rank must stay until all are done; look at the output of rank {keeper}"
        ) from None
    if problem:
        raise RankLostError(problem)
    return payloads


def mail(job: str, target: int, source: int, subject: str, payload: bytes) -> None:
    """Leave a letter in the mailbox of rank `target`.

    Raises:
        RankLostError: it has ended.
    """
    try:
        with _door(job, target) as door:
            wire.send(door, [_MAIL, source, subject], [payload])
            wire.receive(door)
    except (ConnectionError, FileNotFoundError) as error:
        raise RankLostError(
            f"send: rank {target} has ended ({error}), so rank {source} cannot send to it; look "
            f"at the output of rank {target}"
        ) from None


def hand(job: str, target: int, parcel: ArrayMessage) -> None:
    """Leave a parcel on the shelf of rank `target`.

    Raises:
        ConnectionError, FileNotFoundError: it has ended.
    """
    with _door(job, target) as door:
        question = [parcel.source, parcel.channel, parcel.kind, parcel.what]
        wire.send(door, [_PARCEL, *question], [])
        _pass(door, parcel.descriptor)
        wire.receive(door)


def _door(job: str, rank: int) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.connect(_address(job, rank))
        _same_user(door)
    except BaseException:
        door.close()
        raise
    return door


def _same_user(peer: socket.socket) -> None:
    size = struct.calcsize("3i")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    user = struct.unpack("3i", credentials)[1]
    if user != os.geteuid():
        raise JoinError(
            f"start: the other end of a rank's socket belongs to user {user}, this rank to user "
            f"{os.geteuid()}; all ranks must run as one user; use another job id"
        )


def _address(job: str, rank: int) -> str:
    # The kernel allows 107 bytes of name, and job names have any length: so a digest.
    digest = hashlib.sha256(job.encode()).hexdigest()[:32]
    return f"\0torch-xdist/{os.geteuid()}/{rank}/{digest}"

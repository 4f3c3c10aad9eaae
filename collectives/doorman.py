"""How the ranks of one host come to share memory: anonymous memory, handed over a local socket.

Each rank keeps a doorman, a thread behind an abstract Unix socket named by job, attempt and rank.
Asked for the memory of a group, it makes an anonymous memory file once and passes its descriptor
to processes of the same user. Nothing has a name in any file system, so nothing is left behind
after a SIGKILL, and the small /dev/shm of a container is no limit.
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

from torch_xdist.collectives.errors import JoinError

_QUESTION = struct.Struct("=QI")  # bytes wanted, length of the name
_PATIENCE_S = 0.002
_NOTICE_S = 10.0


class Doorman:
    """The memory files this rank leads, served to the other ranks of the host."""

    def __init__(self, job: str, rank: int) -> None:
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(_address(job, rank))
        self._socket.listen(256)
        threading.Thread(target=self._serve, name="xdist-doorman", daemon=True).start()

    def file(self, name: str, size_bytes: int) -> int:
        """A descriptor of the memory file `name`, made at the first call; the caller closes it."""
        with self._lock:
            if name not in self._files:
                self._files[name] = os.memfd_create(name[:200], os.MFD_CLOEXEC)
                os.ftruncate(self._files[name], size_bytes)
            return os.dup(self._files[name])

    def close(self) -> None:
        """Stop serving, and close the files (memory that is mapped stays)."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()

    def _serve(self) -> None:
        while True:
            try:
                guest, _ = self._socket.accept()
            except OSError:
                return  # closed
            with guest:
                try:
                    self._answer(guest)
                except OSError as error:
                    print(f"torch-xdist: a rank left at the door: {error}", file=sys.stderr)

    def _answer(self, guest: socket.socket) -> None:
        guest.settimeout(10.0)
        _same_user(guest)
        size_bytes, length = _QUESTION.unpack(_received(guest, _QUESTION.size))
        descriptor = self.file(_received(guest, length).decode(), size_bytes)
        try:
            passed = array.array("i", [descriptor])
            guest.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        finally:
            os.close(descriptor)


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
        except (ConnectionError, FileNotFoundError, TimeoutError):
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(30.0)
        door.connect(_address(job, leader))
        _same_user(door)
        text = name.encode()
        door.sendall(_QUESTION.pack(size_bytes, len(text)) + text)
        _, ancillary, _, _ = door.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("i")))
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                return struct.unpack("i", data[:4])[0]
        raise ConnectionResetError(f"rank {leader} closed its door")


def _same_user(peer: socket.socket) -> None:
    size = struct.calcsize("3i")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    user = struct.unpack("3i", credentials)[1]
    if user != os.geteuid():
        raise JoinError(
            f"start: the other end of a rank's socket belongs to user {user}, this rank to user "
            f"{os.geteuid()}; all ranks must run as one user; use another job id"
        )


def _received(guest: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = guest.recv(length - len(data))
        if not piece:
            raise ConnectionResetError("the question was cut short")
        data += piece
    return data


def _address(job: str, rank: int) -> bytes:
    # The kernel allows 107 bytes of name, and job names have any length: so a digest.
    digest = hashlib.sha256(job.encode()).hexdigest()[:32]
    return f"\0torch-xdist/{os.geteuid()}/{rank}/{digest}".encode()

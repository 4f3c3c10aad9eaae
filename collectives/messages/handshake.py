"""Two processes prove to each other that they know the secret of one job, before anything is read.

Three messages of fixed sizes: a nonce; a nonce and the server's proof; the client's proof. A proof
is an HMAC of both nonces and of the address, so none can be used a second time or elsewhere. On a
Unix socket the kernel has said before that both belong to one user; the secret keeps out processes
of that user in other containers that share the network. Without a secret (other launchers hand out
none) the messages are the same and prove nothing more, so a process that the kernel cannot name,
because it lives in another container, is refused.
"""

import hmac
import os
import socket

from torch_xdist.collectives.errors import StrangerError
from torch_xdist.system import process

_NONCE_BYTES = 16
_PROOF_BYTES = 32


def authenticate(sock: socket.socket, address: str, secret: bytes) -> None:
    """The client's side, on a connected socket.

    Raises:
        StrangerError: the other end belongs to another user, or does not know the secret.
        ConnectionError: it closed the connection.
    """
    _refuse_strangers(sock, secret)
    ours = os.urandom(_NONCE_BYTES)
    sock.sendall(ours)
    answer = _exactly(sock, _NONCE_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, "server", address, ours + theirs)):
        raise StrangerError(
            "start: a process of another job, or one with another XLA_RUN_SECRET, listens where a "
            "rank of this job should; all ranks must have one secret; start the job again"
        )
    sock.sendall(_proof(secret, "client", address, ours + theirs))


class ServerHandshake:
    """The server's side, on a socket that is read when it is ready.

    Raises:
        StrangerError: the other end belongs to another user.
    """

    def __init__(self, sock: socket.socket, address: str, secret: bytes) -> None:
        _refuse_strangers(sock, secret)
        self._sock, self._address, self._secret = sock, address, secret
        self._read = b""
        self._nonces = b""

    def read_ready(self) -> bool | None:
        """After a selector said "readable": whether the client has proved itself, None: not yet.

        False also where it went away.
        """
        wanted = _PROOF_BYTES if self._nonces else _NONCE_BYTES
        try:
            data = self._sock.recv(wanted - len(self._read), socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return False
        if not data:
            return False
        self._read += data
        if len(self._read) < wanted:
            return None
        if self._nonces:
            expected = _proof(self._secret, "client", self._address, self._nonces)
            return hmac.compare_digest(self._read, expected)
        return self._answer()

    def _answer(self) -> bool | None:
        ours = os.urandom(_NONCE_BYTES)
        self._nonces, self._read = self._read + ours, b""
        try:
            self._sock.sendall(ours + _proof(self._secret, "server", self._address, self._nonces))
        except OSError:
            return False
        return None


def _proof(secret: bytes, side: str, address: str, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join((side.encode(), address.encode(), nonces)), "sha256")


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("the other end of a local socket closed it")
        data += piece
    return data


def _refuse_strangers(sock: socket.socket, secret: bytes) -> None:
    if sock.family != socket.AF_UNIX:
        return
    number, user, _ = process.credentials(sock)
    if user != os.geteuid():
        raise StrangerError(
            f"start: the other end of a rank's socket belongs to user {user}, this rank to user "
            f"{os.geteuid()}; all ranks must run as one user; use another job id"
        )
    if not number and not secret:
        raise StrangerError(
            "start: the other end of a rank's socket lives in another container, and this job has "
            "no secret by which to know it; set XLA_RUN_SECRET to the same random hexadecimal "
            "digits on all ranks, or start them with xla-run"
        )

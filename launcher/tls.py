"""TLS 1.3 between hosts, under a key pair that the listening side makes for its job.

Nobody signs the certificate, and nobody is asked about it: the other side takes any, and both prove
their secret together with the certificate that they see (`sealed`). Whoever puts one of his own
between them has another proof to give, and cannot. In pipes that an engine such as srun carries for
one agent alone, the digest of the certificate comes first, and the agent takes no other (`meet`):
the engine says who may speak, and whoever listens on its way reads nothing.

Python's ssl uses key pairs and makes none. The `openssl` beside it does, which machines have that
have ssh, and every environment of conda; the private key goes through a pipe into this process's
memory, and into no file.
"""

import functools
import hashlib
import os
import shutil
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

from torch_xdist.launcher.facts.errors import AuthError, HostError
from torch_xdist.system.errors import FrameError
from torch_xdist.system.frames import write_all

_MAKE = (
    *("req", "-x509", "-batch", "-config", "/dev/stdin", "-subj", "/CN=xla-run"),
    *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650"),
    *("-keyout", "/dev/stdout", "-out", "/dev/stdout"),
)
# A machine may have no configuration of its own, without which `req` does nothing.
_CONFIGURATION = b"[req]\ndistinguished_name=name\n[name]\n"
_MAKE_S = 20.0
# The most that a record has, and by how much that grows when it is closed.
_RECORD_BYTES, _MORE_BYTES = 1 << 14, 256
# Its kind, the version, and how many bytes follow.
_HEAD = struct.Struct("!BHH")
_KINDS = range(20, 24)
_READ_BYTES = 1 << 16
HEAD_BYTES = _HEAD.size


class KeyPair:
    """A private key and a certificate that are made here, and end with this process.

    Attributes:
        digest: the SHA-256 of the certificate.

    Raises:
        HostError: there is no openssl here that makes one.
    """

    def __init__(self) -> None:
        pem = _made()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Nobody comes back to a session, and nothing is sent that was not asked for.
        self._context.num_tickets = 0
        memory = os.memfd_create("xla-run")
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(pem)
            self._context.load_cert_chain(f"/proc/self/fd/{memory}")
        except OSError as error:  # ssl's own are among them
            raise HostError(f"openssl made no key pair: {_why(error)}") from None
        finally:
            os.close(memory)
        certificate = pem[pem.index(b"-----BEGIN CERTIFICATE-----") :].decode()
        self.digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).digest()

    def accepting(self) -> "Tls":
        """The end that listens, of one connection."""
        return Tls(self._context, is_server=True)


def key_pair(
    warn: Callable[[str], None], means: str = "what hosts say to each other is authenticated"
) -> KeyPair | None:
    """A pair for this side of a job; where none can be made, it is said what that means."""
    try:
        return KeyPair()
    except HostError as error:
        warn(f"warning: {error}; {means}, not encrypted")
        return None


def connecting() -> "Tls":
    """The end that has called, of one connection; whose certificate it sees is `seen`."""
    return Tls(_trusting(), is_server=False)


def meet(read_fd: int, write_fd: int, digest: bytes) -> "Tls":
    """The end that was started with a certificate's digest: shake hands over its pipes.

    Raises:
        AuthError: the other side has another certificate.
        HostError: it has gone, or is no end of a handshake.
    """
    end = connecting()
    ours = end.shaken()
    while not end.is_shaken:
        write_all(write_fd, ours)
        data = os.read(read_fd, _READ_BYTES)
        if not data:
            raise HostError("xla-run has gone before the connection was encrypted")
        ours = end.shaken(data)
    if end.seen() != digest:
        raise AuthError(
            "it is not the certificate of this job; somebody on the way has put in his own"
        )
    write_all(write_fd, ours)
    return end


@functools.cache
def _trusting() -> ssl.SSLContext:
    """Takes any certificate: proofs or its digest say whether it is the right one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def bytes_after(head: bytes) -> int:
    """How many bytes of a record follow its first `HEAD_BYTES`.

    Raises:
        HostError: they begin no record.
    """
    kind, _, size = _HEAD.unpack(head)
    if kind not in _KINDS or size > _RECORD_BYTES + _MORE_BYTES:
        raise HostError(f"it is no xla-run: it says {head!r}")
    return int(size)


class Tls:
    """One end of an encrypted connection, as bytes in and bytes out; others move them."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._came, self._goes, server_side=is_server)
        self.is_shaken = False
        """Whether both ends have shaken hands."""
        # What is read and what is written are two threads' in some processes.
        self._turn = threading.Lock()

    def shaken(self, data: bytes = b"") -> bytes:
        """A step of the handshake: what the other side is to get; `is_shaken` after the last one.

        Raises:
            HostError: the other side is no end of a handshake.
        """
        self._came.write(data)
        try:
            self._object.do_handshake()
            self.is_shaken = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise HostError(
                f"it is no xla-run: it begins no encrypted connection ({_why(error)})"
            ) from None
        return self._goes.read()

    def seen(self) -> bytes:
        """The SHA-256 of the other side's certificate."""
        return hashlib.sha256(self._object.getpeercert(binary_form=True) or b"").digest()

    def sealed(self, data: bytes | memoryview) -> bytes:
        """The bytes as the other side can open them."""
        with self._turn:
            if data:
                self._object.write(data)
            return self._goes.read()

    def opened(self, data: bytes) -> bytes:
        """The bytes of all records that `data` completes.

        Raises:
            FrameError: a record is not the next one that the other side has sealed.
        """
        found = []
        with self._turn:
            self._came.write(data)
            try:
                # Looked for first: to ask for what is not there costs as much as a record.
                while self._came.pending or self._object.pending():
                    found.append(self._object.read(_RECORD_BYTES))
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                pass
            except ssl.SSLError as error:
                raise FrameError(
                    f"a record without the seal of this connection ({_why(error)}); somebody on "
                    "the way has changed, repeated or left out something"
                ) from None
        return b"".join(found)


def _why(error: OSError) -> str:
    """OpenSSL's own word for it, where it has one."""
    return (getattr(error, "reason", "") or str(error)).lower().replace("_", " ")


def _made() -> bytes:
    """A private key and its certificate, as PEM."""
    # An environment of conda has its own, also where it was not activated.
    beside = os.path.dirname(sys.executable)
    tool = shutil.which("openssl") or shutil.which("openssl", path=beside)
    if not tool:
        raise HostError("there is no openssl here to make a key pair with")
    try:
        done = subprocess.run(
            [tool, *_MAKE], input=_CONFIGURATION, capture_output=True, timeout=_MAKE_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", b"") or b""
        last = told.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostError(f"openssl made no key pair: {last or error}") from None
    if b"-----BEGIN CERTIFICATE-----" not in done.stdout:
        raise HostError(f"openssl made no key pair: it gave {len(done.stdout)} bytes")
    return done.stdout

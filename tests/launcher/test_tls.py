"""Two ends of a connection whose head has a key pair, and what is noticed of whoever is between."""

import contextlib
import os
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from torch_xdist.launcher import sealed, tls
from torch_xdist.launcher.facts.errors import AuthError, HostError
from torch_xdist.launcher.sealed import Sealed, as_head, as_node
from torch_xdist.launcher.tls import KeyPair, key_pair
from torch_xdist.system.errors import FrameError

SECRET, OTHER = b"s" * 32, b"o" * 32
LIMIT_S = 5.0
PYTHON = sys.executable
HELLO_BYTES = sealed._HELLO.size
# The kind of a record of TLS whose content is encrypted.
CLOSED = 23


@pytest.fixture(scope="module")
def pair() -> KeyPair:
    return KeyPair()


class Between:
    """Carries what two sockets say to each other, byte by byte, and may change it.

    Args:
        change: given who says it ("head" or "node") and the bytes; what the other side gets.
    """

    def __init__(self, change: Callable[[str, bytes], bytes] = lambda who, data: data) -> None:
        self.head, self._to_head = socket.socketpair()
        self.node, self._to_node = socket.socketpair()
        self.seen = {"head": b"", "node": b""}
        self._change = change
        for who, come, go in (
            ("head", self._to_head, self._to_node),
            ("node", self._to_node, self._to_head),
        ):
            threading.Thread(target=self._carry, args=(who, come, go), daemon=True).start()

    def _carry(self, who: str, come: socket.socket, go: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := come.recv(1 << 16):
                self.seen[who] += data
                go.sendall(self._change(who, data))
            go.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for sock in (self.head, self.node, self._to_head, self._to_node):
            sock.close()


@pytest.fixture
def between() -> Iterator[Callable[..., Between]]:
    made: list[Between] = []

    def make(*arguments: Callable[[str, bytes], bytes]) -> Between:
        made.append(Between(*arguments))
        return made[-1]

    yield make
    for wire in made:
        wire.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


Both = tuple["Future[Sealed]", "Future[Sealed]"]


@pytest.fixture
def begin(pool: ThreadPoolExecutor) -> Callable[..., Both]:
    """Both handshakes, each on a thread."""

    def of(wire: Between, pair: KeyPair | None, secret: bytes = SECRET) -> Both:
        head = pool.submit(as_head, wire.head, SECRET, "job", LIMIT_S, pair)
        return head, pool.submit(as_node, wire.node, secret, LIMIT_S)

    return of


def test_what_hosts_say_cannot_be_read_along(
    between: Callable, begin: Callable, pair: KeyPair
) -> None:
    wire = between()
    head, node = (end.result(10) for end in begin(wire, pair))
    assert node.job_id == "job"
    for come, go, what in ((node, head, b"an order " * 9), (head, node, b"some news " * 9)):
        data = go.sealer.sealed(what)
        assert come.opener.opened(data) == what
        assert what[:9] not in data
    both = wire.seen["head"] + wire.seen["node"]
    assert b"job" not in both and SECRET not in both


def test_an_end_speaks_no_older_tls(pair: KeyPair) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    goes = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        old.wrap_bio(ssl.MemoryBIO(), goes).do_handshake()
    with pytest.raises(HostError, match=r"begins no encrypted connection \(unsupported protocol\)"):
        pair.accepting().shaken(goes.read())


def test_another_secret_is_told_on_both_sides(
    between: Callable, begin: Callable, pair: KeyPair
) -> None:
    head, node = begin(between(), pair, OTHER)
    with pytest.raises(AuthError, match="it does not know the secret of this job"):
        head.result(10)
    with pytest.raises(AuthError, match="it refuses this node: XLA_RUN_SECRET is another one"):
        node.result(10)


class Stranger:
    """Speaks with a head as a node, and with a node as a head."""

    def __init__(self, between: Callable, pool: ThreadPoolExecutor, pair: KeyPair) -> None:
        to_node, to_head = between(), between()
        self._head = pool.submit(as_head, to_head.head, SECRET, "job", LIMIT_S, pair)
        self._node = pool.submit(as_node, to_node.node, SECRET, LIMIT_S)
        self.near = sealed._Wire(to_node.head, LIMIT_S)
        self.far = sealed._Wire(to_head.node, LIMIT_S)

    def is_refused_by_both(self) -> None:
        """He passes on what the node proves, and what the head says of it."""
        self.far.send(self.near.exactly(HELLO_BYTES + 32))
        with pytest.raises(AuthError, match="it does not know the secret"):
            self._head.result(10)
        self.near.send(self.far.exactly(1))
        with pytest.raises(AuthError, match="it refuses this node"):
            self._node.result(10)


@pytest.fixture
def stranger(between: Callable, pool: ThreadPoolExecutor, pair: KeyPair) -> Stranger:
    return Stranger(between, pool, pair)


def test_whoever_is_between_with_a_certificate_of_his_own_is_refused(
    stranger: Stranger, pool: ThreadPoolExecutor
) -> None:
    stranger.near.send(stranger.far.exactly(HELLO_BYTES))
    far_end = pool.submit(stranger.far.encrypt, tls.connecting())
    stranger.near.encrypt(KeyPair().accepting())
    far_end.result(10)
    stranger.is_refused_by_both()


def test_whoever_says_for_the_head_that_it_encrypts_nothing_is_noticed(stranger: Stranger) -> None:
    greeting = stranger.far.exactly(HELLO_BYTES)
    assert greeting[16] == 1
    stranger.near.send(greeting[:16] + b"\0" + greeting[17:])
    stranger.far.encrypt(tls.connecting())
    stranger.is_refused_by_both()


@pytest.mark.parametrize("how", ["altered", "repeated", "left out", "moved", "plain"])
def test_a_record_that_is_not_the_next_one_ends_the_stream(
    between: Callable, begin: Callable, pair: KeyPair, how: str
) -> None:
    head, node = (end.result(10) for end in begin(between(), pair))
    first, second, third = (head.sealer.sealed(text) for text in (b"one", b"two", b"three"))
    came = {
        "altered": first + second[:-1] + bytes([second[-1] ^ 1]) + third,
        "repeated": first + first + second,
        "left out": first + third,
        "moved": second + first + third,
        "plain": first + b"two" + third,
    }[how]
    with pytest.raises(FrameError, match=r"a record without the seal of this connection \(.+\); s"):
        node.opener.opened(came)


def test_records_are_read_however_the_stream_is_chopped(
    between: Callable, begin: Callable, pair: KeyPair
) -> None:
    head, node = (end.result(10) for end in begin(between(), pair))
    data = os.urandom(50_000)
    stream, found = head.sealer.sealed(data), b""
    for start in range(0, len(stream), 997):
        found += node.opener.opened(stream[start : start + 997])
    assert found == data and head.sealer.sealed(b"") == b""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 500, r"it is no xla-run: it says b'GET /'"),
        (b"\x16\x03\x01\x00\x20" + b"y" * 32, r"it begins no encrypted connection \(.+\)"),
    ],
)
def test_what_begins_no_encrypted_connection_is_named(
    between: Callable, pool: ThreadPoolExecutor, pair: KeyPair, said: bytes, told: str
) -> None:
    wire = between()
    head = pool.submit(as_head, wire.head, SECRET, "job", LIMIT_S, pair)
    wire.node.sendall(said)
    with pytest.raises(HostError, match=told):
        head.result(10)


def test_a_damaged_proof_is_told(
    between: Callable, pool: ThreadPoolExecutor, pair: KeyPair
) -> None:
    came = bytearray()

    def damaged(who: str, data: bytes) -> bytes:
        # The last byte of the proof: of the second closed record, after the end of the handshake.
        if who != "node":
            return data
        came.extend(data)
        end = closed = 0
        while closed < 2 and len(came) >= end + tls.HEAD_BYTES:
            closed += came[end] == CLOSED
            end += tls.HEAD_BYTES + tls.bytes_after(bytes(came[end : end + tls.HEAD_BYTES]))
        at = end - 1 - (len(came) - len(data))
        if closed < 2 or not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    wire = between(damaged)
    head = pool.submit(as_head, wire.head, SECRET, "job", LIMIT_S, pair)
    node = pool.submit(as_node, wire.node, SECRET, LIMIT_S)
    with pytest.raises(HostError, match=r"a record without the seal|begins no encrypted"):
        head.result(10)
    wire.head.close()
    with pytest.raises(HostError):
        node.result(10)


def test_one_that_says_half_a_handshake_is_not_waited_for(
    between: Callable, pool: ThreadPoolExecutor, pair: KeyPair
) -> None:
    wire = between()
    began_s = time.monotonic()
    head = pool.submit(as_head, wire.head, SECRET, "job", 0.5, pair)
    wire.node.sendall(b"\x16\x03\x01\x02\x00" + b"z" * 20)
    with pytest.raises(HostError, match="it says nothing, or not enough"):
        head.result(10)
    assert time.monotonic() - began_s < 5


# ---- the key pair ------------------------------------------------------------------------------


def test_a_key_pair_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert KeyPair().digest != KeyPair().digest
    assert list(tmp_path.iterdir()) == []


def program(folder: Path, text: str) -> None:
    made = folder / "openssl"
    made.write_text(f"#!{PYTHON}\n{text}\n")
    made.chmod(made.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "openssl made no key pair: it gave 0 bytes"),
        ("import sys; sys.exit('req: not here')", "openssl made no key pair: req: not here"),
        ("print('-----BEGIN CERTIFICATE-----')", "openssl made no key pair: "),
        ("import time; time.sleep(60)", "openssl made no key pair: .* timed out after 0.5 sec"),
        (None, "there is no openssl here to make a key pair with"),
    ],
)
def test_where_no_key_pair_is_made_it_is_said_what_that_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, told: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tls.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(tls, "_MAKE_S", 0.5 if "sleep" in (text or "") else 20.0)
    if text is not None:
        program(tmp_path, text)
    said: list[str] = []
    assert key_pair(said.append) is None
    with pytest.raises(HostError, match=told):
        KeyPair()
    (line,) = said
    assert line.startswith("warning: ")
    assert line.endswith("; what hosts say to each other is authenticated, not encrypted")


def test_the_openssl_beside_the_interpreter_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tls.shutil.which("openssl")
    assert real
    (tmp_path / "openssl").symlink_to(real)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(tls.sys, "executable", str(tmp_path / "python"))
    assert len(KeyPair().digest) == 32

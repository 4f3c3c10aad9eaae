"""Who is believed to be a host of a job without a launcher, and what strangers can do: nothing."""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torch_xdist.launcher import tls
from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import AuthError
from torch_xdist.launcher.head.fellows import entrance
from torch_xdist.launcher.head.fellows.links import FellowLinks
from torch_xdist.launcher.on_host.coordinator import free_port
from torch_xdist.launcher.sealed import _Wire, as_head, as_node
from torch_xdist.system.errors import FrameError
from torch_xdist.system.frames import encode

NAMES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
HELLO = {"version": 1, "hosts": 3, "ranks": 2, "device": "CPU"}
HERE = encode({**HELLO, "say": "here", "host": 1})
SECRET, OTHER = b"\x5e" * 32, b"\x0f" * 32
STRANGER = "127.0.0.9"


class Fellow:
    def __init__(self, host: int, port: int, secret: bytes, names: tuple[str, ...]) -> None:
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        part = HostOfMany("a slice", host, 3, "127.0.0.1", port, names)
        self.links = FellowLinks(part, HELLO, self.heard.put, 0.2, 5.0, secret)

    def hears(self, **wanted: Any) -> dict[str, Any]:
        end_s = time.monotonic() + 20
        while True:
            message = self.heard.get(timeout=max(0.01, end_s - time.monotonic()))
            if wanted.items() <= message.items():
                return message


@pytest.fixture
def fellow() -> Iterator[Callable]:
    """`fellow(1, secret)`: a host of three, all of which are on this machine."""
    port, made = free_port(), []

    def begin(host: int, secret: bytes = b"", names: tuple[str, ...] = NAMES) -> Fellow:
        made.append(Fellow(host, port, secret, names))
        made[-1].port = port
        return made[-1]

    yield begin
    for one in made:
        one.links.close()


def knocks(port: int, said: bytes, source: str = STRANGER) -> bytes:
    """Say this to host 0, and read what it answers until it hangs up."""
    with socket.create_connection(("127.0.0.1", port), 5, (source, 0)) as sock:
        sock.settimeout(15)
        heard = b""
        with contextlib.suppress(OSError):  # it may hang up at any moment
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(4096):
                heard += data
        return heard


def all_come(fellow: Callable, first: Fellow, secret: bytes = b"") -> None:
    """What strangers did has changed nothing: the others come, and are all there are."""
    for host in (1, 2):
        fellow(host, secret)
    assert first.hears(say="present", hosts=[0, 1, 2])


def test_right_words_from_an_address_that_is_not_listed_are_not_heard(fellow: Callable) -> None:
    first = fellow(0)
    assert knocks(first.port, HERE) == b""
    text = first.hears(op="note")["text"]
    assert text.startswith(
        "warning: a connection from 127.0.0.9 was refused: it is no address of the hosts of a "
        "slice (127.0.0.1, 127.0.0.2, 127.0.0.3); if it is one of them, set the same XLA_RUN_SE"
    )
    assert first.heard.empty()
    all_come(fellow, first)


@pytest.mark.parametrize("said", [HERE, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, b""])
def test_who_proves_no_secret_is_not_heard_from_any_address(fellow: Callable, said: bytes) -> None:
    first = fellow(0, SECRET)
    assert HERE not in knocks(first.port, said, source="127.0.0.2")
    assert first.hears(op="note")["text"].startswith(
        "warning: a connection from 127.0.0.2 was refused: it "
    )
    assert first.heard.empty()
    all_come(fellow, first, SECRET)


def test_another_secret_is_told_on_both_sides(fellow: Callable) -> None:
    first, second = fellow(0, SECRET), fellow(1, OTHER)
    text = first.hears(op="note")["text"]
    assert text.endswith("refused: it does not know the secret of this job (XLA_RUN_SECRET)")
    ended = second.hears(say="over", exit_code=73)
    assert "host 127.0.0.1 (worker 0) at 127.0.0.1:" in ended["text"]
    assert "XLA_RUN_SECRET is another one there; set the same" in ended["text"]


def test_who_has_the_secret_and_says_what_is_no_message_is_let_go(fellow: Callable) -> None:
    first = fellow(0, SECRET)
    for said in (b"\xff" * 100, encode({"say": "obey", "host": 1}), encode({"host": 1})):
        with socket.create_connection(("127.0.0.1", first.port), 5) as sock:
            sealed = as_node(sock, SECRET, 5)
            sock.sendall(sealed.sealer.sealed(said))
            sock.settimeout(5)
            assert sock.recv(1) == b""
    all_come(fellow, first, SECRET)


def test_another_version_of_the_proof_is_refused(fellow: Callable) -> None:
    first = fellow(0, SECRET)
    hello = struct.pack("!16sBB32s", b"xla-run nodes\r\n\0", 1, 99, bytes(32))
    with socket.create_connection(("127.0.0.1", first.port), 5) as sock:
        wire = _Wire(sock, 5)
        wire.greeting()
        wire.encrypt(tls.connecting())
        wire.send(hello + bytes(32))
    assert "it speaks version 99 of the protocol" in first.hears(op="note")["text"]
    all_come(fellow, first, SECRET)


def test_a_host_without_the_secret_is_told_that_host_0_has_one(fellow: Callable) -> None:
    fellow(0, SECRET)
    text = fellow(1).hears(say="over", exit_code=73)["text"]
    assert "it speaks otherwise than this host; perhaps XLA_RUN_SECRET is set there alone" in text


def test_a_host_with_a_secret_does_not_believe_a_host_0_without(
    fellow: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance, "_DIAL_S", 0.3)
    fellow(0)
    text = fellow(1, SECRET).hears(say="over", exit_code=73)["text"]
    assert "it says nothing, or not enough; perhaps XLA_RUN_SECRET is not set there" in text


def test_a_flood_from_one_address_leaves_room_for_the_hosts(fellow: Callable) -> None:
    first = fellow(0, SECRET)
    flood = [
        socket.create_connection(("127.0.0.1", first.port), 5, (STRANGER, 0)) for _ in range(100)
    ]
    since_s = time.monotonic()
    all_come(fellow, first, SECRET)
    assert time.monotonic() - since_s < 15
    for sock in flood:
        sock.close()


def test_hundreds_of_strangers_are_told_of_in_a_few_lines(fellow: Callable) -> None:
    first = fellow(0)
    for number in range(60):
        knocks(first.port, HERE, source=f"127.0.1.{number + 1}")
    all_come(fellow, first)
    notes = [one for one in list(first.heard.queue) if one.get("op") == "note"]
    assert len(notes) <= 20


def test_where_no_host_is_listed_anybody_is_heard(fellow: Callable) -> None:
    first = fellow(0, names=())
    with socket.create_connection(("127.0.0.1", first.port), 5, (STRANGER, 0)) as sock:
        sock.sendall(HERE)
        assert first.hears(say="present", hosts=[0, 1])


def test_a_job_of_nodes_is_none_of_hosts_though_its_secret_is_the_same() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    part = HostOfMany("a slice", 1, 2, "127.0.0.1", listener.getsockname()[1])
    with listener, pytest.raises(AuthError, match="it is node 0 of a job of --nnodes; give one"):
        answers(listener, "1124-1")
        entrance.dialed(part, SECRET)


def answers(listener: socket.socket, job_id: str) -> None:
    def meet() -> None:
        sock, _ = listener.accept()
        with sock:
            as_head(sock, SECRET, job_id, 5)

    threading.Thread(target=meet, daemon=True).start()


def test_an_ipv4_address_inside_ipv6_is_itself() -> None:
    assert entrance.plain("::ffff:10.0.0.7") == "10.0.0.7"
    assert entrance.plain("fe80::1%eth0") == "fe80::1" and entrance.plain("x") == "x"


def test_what_was_changed_on_the_way_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    made: list[Any] = []
    other = threading.Thread(target=lambda: made.append(as_node(theirs, SECRET, 5)))
    other.start()
    near = entrance.SealedLink(ours, as_head(ours, SECRET, "hosts", 5))
    other.join(5)
    near.send({"say": "beat"})
    record = theirs.recv(4096)
    to, way = socket.socketpair()
    with contextlib.closing(near), contextlib.closing(entrance.SealedLink(way, made[0])) as far:
        to.sendall(record.replace(b"beat", b"over"))
        with pytest.raises(FrameError, match="without the seal of this connection"):
            far.read_ready()
    for sock in (theirs, to):
        sock.close()

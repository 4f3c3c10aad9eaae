"""Two ends of a connection that prove one secret, and what is noticed of whoever has none."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from torch_xdist.launcher import sealed
from torch_xdist.launcher.facts.errors import AuthError, HostError, PreflightError
from torch_xdist.launcher.sealed import Opener, Sealed, Sealer, as_head, as_node, rank_secret
from torch_xdist.system.errors import FrameError

SECRET, OTHER = b"s" * 32, b"o" * 32
LIMIT_S = 5.0
HELLO = struct.Struct("!16sBB32s")


class Wire:
    """Both ends of a connection, each handshake on a thread."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.head, self.node = socket.socketpair()

    def as_head(self, secret: bytes = SECRET, limit_s: float = LIMIT_S) -> "Future[Sealed]":
        return self._pool.submit(as_head, self.head, secret, "job", limit_s)

    def as_node(self, secret: bytes = SECRET, limit_s: float = LIMIT_S) -> "Future[Sealed]":
        return self._pool.submit(as_node, self.node, secret, limit_s)

    def both(self) -> tuple[Sealed, Sealed]:
        head, node = self.as_head(), self.as_node()
        return head.result(10), node.result(10)


@pytest.fixture
def wires() -> Iterator[Callable[[], Wire]]:
    made: list[Wire] = []
    with ThreadPoolExecutor(4) as pool:

        def make() -> Wire:
            made.append(Wire(pool))
            return made[-1]

        yield make
        for wire in made:
            wire.head.close()
            wire.node.close()


def test_both_sides_that_know_the_secret_can_talk(wires: Callable) -> None:
    head, node = wires().both()
    assert node.job_id == "job"
    assert node.opener.opened(head.sealer.sealed(b"order")) == b"order"
    assert head.opener.opened(node.sealer.sealed(b"news")) == b"news"


def test_the_secret_and_the_keys_are_never_sent(wires: Callable) -> None:
    wire = wires()
    node = wire.as_node()
    wire.head.sendall(HELLO.pack(b"xla-run nodes\r\n\0", 0, sealed.VERSION, b"n" * 32))
    said = wire.head.recv(4096)
    wire.head.close()
    with pytest.raises(HostError, match="it has hung up"):
        node.result(10)
    assert len(said) == HELLO.size + 32 and SECRET not in said


def test_a_node_without_the_secret_is_refused_by_the_head_and_told(wires: Callable) -> None:
    wire = wires()
    head, node = wire.as_head(), wire.as_node(OTHER)
    with pytest.raises(AuthError, match="it does not know the secret of this job"):
        head.result(10)
    with pytest.raises(AuthError, match="it refuses this node: XLA_RUN_SECRET is another one"):
        node.result(10)


def test_a_head_without_the_secret_is_refused_by_the_node(wires: Callable) -> None:
    wire = wires()
    node = wire.as_node()
    wire.head.sendall(HELLO.pack(b"xla-run nodes\r\n\0", 0, sealed.VERSION, b"n" * 32))
    wire.head.recv(4096)
    wire.head.sendall(b"+\x03job" + b"p" * 32)
    with pytest.raises(AuthError, match="it does not know the secret of this job, so it is not no"):
        node.result(10)


def test_the_job_is_part_of_what_the_head_proves(wires: Callable) -> None:
    wire, between = wires(), wires()
    head, node = wire.as_head(), between.as_node()
    between.head.sendall(wire.node.recv(4096))
    wire.node.sendall(between.head.recv(4096))
    answer = wire.node.recv(4096)
    head.result(10)
    between.head.sendall(answer.replace(b"job", b"jab"))
    with pytest.raises(AuthError, match="it does not know the secret"):
        node.result(10)


def test_the_proof_of_a_node_is_good_for_one_connection_alone(wires: Callable) -> None:
    first, node = wires(), wires()
    answered = first.as_head()
    asked = node.as_node()
    node.head.sendall(first.node.recv(4096))
    proof = node.head.recv(4096)
    first.node.sendall(proof)
    answered.result(10)
    again = wires()
    refused = again.as_head()
    again.node.recv(4096)
    again.node.sendall(proof)
    with pytest.raises(AuthError, match="it does not know the secret"):
        refused.result(10)
    node.head.close()
    with pytest.raises(HostError):
        asked.result(10)


def test_a_node_that_is_sent_its_own_proof_does_not_take_it(wires: Callable) -> None:
    wire = wires()
    node = wire.as_node()
    wire.head.sendall(HELLO.pack(b"xla-run nodes\r\n\0", 0, sealed.VERSION, b"n" * 32))
    proof = wire.head.recv(4096)[-32:]
    wire.head.sendall(b"+\x00" + proof)
    with pytest.raises(AuthError, match="it does not know the secret"):
        node.result(10)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n" + b"x" * 100, os.urandom(200), b"\0" * 200])
def test_what_is_no_node_is_not_read_further(wires: Callable, said: bytes) -> None:
    wire = wires()
    head = wire.as_head()
    wire.node.sendall(said)
    with pytest.raises(HostError, match="it is no xla-run: it says b"):
        head.result(10)


@pytest.mark.parametrize("side", ["head", "node"])
def test_another_version_of_the_protocol_is_named(wires: Callable, side: str) -> None:
    wire = wires()
    asked = wire.as_head() if side == "head" else wire.as_node()
    other = wire.node if side == "head" else wire.head
    other.sendall(HELLO.pack(b"xla-run nodes\r\n\0", 0, 9, b"n" * 32))
    told = "it speaks version 9 of the protocol between nodes, and here is version 2; install the"
    with pytest.raises(PreflightError, match=told):
        asked.result(10)


def test_one_that_says_nothing_is_not_waited_for(wires: Callable) -> None:
    with pytest.raises(HostError, match="it says nothing, or not enough"):
        wires().as_head(limit_s=0.2).result(10)


def test_one_that_says_a_byte_now_and_then_is_not_waited_for(wires: Callable) -> None:
    wire = wires()
    head = wire.as_head(limit_s=0.5)
    while not head.done():
        with contextlib.suppress(OSError):
            wire.node.send(b"x")
        time.sleep(0.05)
    with pytest.raises(HostError, match="it says nothing, or not enough"):
        head.result(5)


# ---- records -----------------------------------------------------------------------------------


def test_records_are_read_however_the_stream_is_chopped() -> None:
    data = os.urandom(3000)
    stream = Sealer(b"k").sealed(data)
    opener, found = Opener(b"k"), b""
    for start in range(0, len(stream), 7):
        found += opener.opened(stream[start : start + 7])
    assert found == data


def test_what_is_long_goes_in_several_records() -> None:
    data = os.urandom(2 * sealed.MOST_RECORD_BYTES + 5)
    assert Opener(b"k").opened(Sealer(b"k").sealed(data)) == data


def changed(records: list[bytes], how: str) -> bytes:
    first, second, third = records
    return {
        "altered": first + second[:-1] + bytes([second[-1] ^ 1]) + third,
        "length": bytes([*first[:3], first[3] - 1, *first[4:]]) + second,
        "mark": first[:10] + bytes([first[10] ^ 1]) + first[11:] + second,
        "repeated": first + first + second,
        "left out": first + third,
        "moved": second + first + third,
    }[how]


@pytest.mark.parametrize("how", ["altered", "length", "mark", "repeated", "left out", "moved"])
def test_a_record_that_is_not_the_next_one_ends_the_stream(how: str) -> None:
    sealer = Sealer(b"k")
    records = [sealer.sealed(text) for text in (b"first", b"second", b"third")]
    with pytest.raises(FrameError, match=r"record \d: \d+ bytes without the seal of this connect"):
        Opener(b"k").opened(changed(records, how))


def test_a_record_of_another_connection_or_direction_is_refused(wires: Callable) -> None:
    one, other = wires().both(), wires().both()
    for record in (other[0].sealer.sealed(b"order"), one[1].sealer.sealed(b"news")):
        with pytest.raises(FrameError, match="record 0: "):
            one[1].opener.opened(record)


def test_the_size_of_a_record_is_bounded_before_it_is_read() -> None:
    opener = Opener(b"k")
    with pytest.raises(FrameError, match="record 0: 4294967295 bytes; at most 1048576 are read"):
        opener.opened(b"\xff" * 36)


def test_the_ranks_of_each_attempt_have_a_secret_of_their_own() -> None:
    made = {
        rank_secret(*facts)
        for facts in (
            *((SECRET, "job", 0, b"salt"), (SECRET, "job", 1, b"salt"), (SECRET, "jo", 0, b"salt")),
            *((SECRET, "job", 0, b"SALT"), (OTHER, "job", 0, b"salt")),
        )
    }
    assert len(made) == 5 and all(len(one) == 32 for one in made) and SECRET not in made

"""The control plane: who is heard, and how much of a stranger's message is read."""

import os
import queue
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from torch_xdist.launcher import control
from torch_xdist.launcher.facts.errors import AuthError, HostError
from torch_xdist.launcher.facts.host import VERSION
from torch_xdist.system import frames

Seen = queue.SimpleQueue[tuple[int, dict, bytes]]


@pytest.fixture
def heard() -> Seen:
    """What the server has told its head."""
    return queue.SimpleQueue()


@pytest.fixture
def server(heard: Seen) -> Iterator[control.Server]:
    made = control.Server("right", lambda *seen: heard.put(seen), lambda message: {"ok": 1})
    yield made
    made.close()


def test_a_call_with_the_token_is_answered(server: control.Server) -> None:
    assert control.call(server.address, "right", {"op": "status"}) == {"ok": 1}


@pytest.mark.parametrize("token", ["wrong", "", "righ", "right "])
def test_a_call_without_the_token_is_refused(server: control.Server, token: str) -> None:
    with pytest.raises(AuthError, match="the job's token is needed; this call was refused"):
        control.call(server.address, token, {"op": "status"})


@pytest.mark.parametrize("method", ["Call", "Agent"])
def test_strangers_are_refused_whatever_they_send(
    server: control.Server, heard: Seen, method: str
) -> None:
    with grpc.insecure_channel(server.address) as channel:
        make = channel.unary_unary if method == "Call" else channel.stream_stream
        ask = make(f"/{control.SERVICE}/{method}")
        sent = b"\x80not a frame"
        with pytest.raises(grpc.RpcError) as caught:
            list(ask(sent if method == "Call" else iter([sent]), timeout=10))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert heard.empty()


STRANGER = """
import sys, grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    ask = channel.unary_unary("/xlarun.Control/Call")
    try:
        ask(bytes(200 << 20), timeout=60)
    except grpc.RpcError as error:
        print(error.code().name)
"""


def test_of_a_strangers_message_nothing_is_kept_in_memory(server: control.Server) -> None:
    before_kib = peak_kib()
    words = [sys.executable, "-c", STRANGER, server.address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "UNAUTHENTICATED", done.stderr
    assert peak_kib() - before_kib < 50 << 10, "200 MiB were sent"


def peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found is not None
    return int(found[1])


def greeting(server: control.Server, **hello: object) -> Iterator[bytes]:
    """An agent's stream that has said hello."""
    channel = grpc.insecure_channel(server.address)
    begin = channel.stream_stream(f"/{control.SERVICE}/Agent")
    never_ends: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    never_ends.put(frames.encode({"op": "hello", **hello}))
    return begin(iter(never_ends.get, None), metadata=((control.TOKEN_KEY, "right"),), timeout=30)


def told(stream: Iterator[bytes]) -> frames.Frame:
    """What an agent is told in one piece, behind the byte that says that it is the last."""
    piece = next(stream)
    assert piece[:1] == b"."
    return frames.decode(piece[1:])


def test_an_agent_is_heard_and_gets_what_was_said_before_it_came(
    server: control.Server, heard: Seen
) -> None:
    server.send(0, {"op": "start"}, b"blob")
    stream = greeting(server, host_index=0, version=VERSION)
    assert told(stream) == frames.Frame({"op": "start"}, (b"blob",))
    assert heard.get(timeout=10)[:2] == (
        *(0, {"op": "hello", "host_index": 0, "version": VERSION}),
    )


def test_an_agent_of_another_version_is_refused_by_name(server: control.Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        next(greeting(server, host_index=0, version=1))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    told = f"the agent speaks version 1 of the control plane, the head version {VERSION}; "
    assert caught.value.details().startswith(told + "install the same torch-xdist on all hosts")


def test_a_second_agent_of_a_host_is_refused_and_takes_nothing_from_the_first(
    server: control.Server, heard: Seen
) -> None:
    first = greeting(server, host_index=0, version=VERSION)
    assert heard.get(timeout=10)[1]["op"] == "hello"
    with pytest.raises(grpc.RpcError) as caught:
        next(greeting(server, host_index=0, version=VERSION))
    assert caught.value.details() == "host 0 has an agent already"
    server.send(0, {"op": "start"})
    assert told(first).message == {"op": "start"}


def test_a_frame_of_any_size_goes_in_pieces_both_ways(
    server: control.Server, heard: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_PIECE_BYTES", 1000)
    taken: queue.SimpleQueue[tuple[dict, bytes]] = queue.SimpleQueue()
    blobs = [os.urandom(size) for size in (10_500, 1000, 0, 977)]
    agent = control.AgentStream(
        *(server.address, "right", {"host_index": 0}),
        lambda *order: taken.put(order),
        lambda why: None,
    )
    assert heard.get(timeout=10)[1]["op"] == "hello"
    for number, blob in enumerate(blobs):
        agent.send({"op": "result", "rank": number}, blob)
        server.send(0, {"op": "payload", "number": number}, blob)
    for number, blob in enumerate(blobs):
        assert heard.get(timeout=10) == (0, {"op": "result", "rank": number}, blob)
        assert taken.get(timeout=10) == ({"op": "payload", "number": number}, blob)
    assert agent.pending_bytes == 0
    agent.close()


def test_no_message_is_larger_than_a_piece(
    server: control.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_PIECE_BYTES", 1000)
    server.send(0, {"op": "payload"}, bytes(2500))
    stream = greeting(server, host_index=0, version=VERSION)
    pieces = [next(stream) for _ in range(3)]
    assert [piece[:1] for piece in pieces] == [b"+", b"+", b"."]
    assert [len(piece) for piece in pieces[:2]] == [1001, 1001]
    assert frames.decode(b"".join(piece[1:] for piece in pieces)).blob == bytes(2500)


def test_nobody_at_the_address_is_an_error_that_names_it() -> None:
    with pytest.raises(HostError, match=r"launcher at 127\.0\.0\.1:1: "):
        control.call("127.0.0.1:1", "any", {"op": "status"}, limit_s=5)


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(HostError, match=r"control plane: cannot listen on 203\.0\.113\.1"):
        control.Server("any", lambda *_: None, lambda message: {}, host="203.0.113.1")


def test_a_second_server_never_shares_a_port(server: control.Server) -> None:
    other = grpc.server(ThreadPoolExecutor(1))
    with pytest.raises(RuntimeError, match="Failed to bind"):
        other.add_insecure_port(server.address)
    assert server.address.startswith("127.0.0.1:")

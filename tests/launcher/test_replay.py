"""What is kept of a stream until the other side has it."""

import pytest

from torch_xdist.launcher import replay as replay_module
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.replay import Replay


def taken(replay: Replay) -> list[bytes]:
    found = []
    while (data := replay.take()) is not None:
        found.append(bytes(data))
    return found


def sent(*messages: bytes, most_bytes: int = 100) -> Replay:
    replay = Replay(keeps=True, most_bytes=most_bytes)
    for data in messages:
        replay.add(data)
    assert taken(replay) == [*messages]
    return replay


def test_what_did_not_come_is_said_again_in_order_before_what_waits() -> None:
    replay = sent(b"a", b"b", b"c")
    replay.add(b"d")
    replay.rewind(1)
    assert replay.pending_bytes == 3
    assert taken(replay) == [b"b", b"c", b"d"] and replay.pending_bytes == 0


def test_a_message_that_went_in_part_is_said_again_from_its_first_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_module, "_PIECE_BYTES", 4)
    replay = sent(b"a")
    replay.add(b"head", b"a long one")
    first = replay.take()
    assert first is not None and bytes(first) == b"head"
    assert replay.is_amid and replay.pending_bytes == 10
    replay.rewind(1)
    assert not replay.is_amid and replay.pending_bytes == 14
    assert taken(replay) == [b"head", b"a lo", b"ng o", b"ne"] and not replay.is_amid
    replay.acknowledge(2)


def test_what_goes_to_many_hosts_is_in_memory_once() -> None:
    call = bytes(3 << 20)
    streams = [Replay(keeps=True) for _ in range(4)]
    for stream in streams:
        stream.add(b"head", call)
        pieces = [stream.take() for _ in range(4)]
        assert all(piece is not None and piece.obj is call for piece in pieces[1:])


def test_what_came_is_not_kept() -> None:
    replay = sent(b"a", b"b")
    replay.acknowledge(2)
    with pytest.raises(HostError, match="it has 1 of 2 messages, and those from 2 on are kept"):
        replay.rewind(1)


def test_more_than_the_limit_is_not_kept_and_told() -> None:
    replay = sent(b"a" * 60, b"b" * 60)
    with pytest.raises(HostError, match="cannot be told again what it has missed: it has 0 of 2"):
        replay.rewind(0)
    replay.rewind(1)
    assert taken(replay) == [b"b" * 60]


def test_a_count_of_what_was_never_sent_is_refused() -> None:
    with pytest.raises(HostError, match="it has 5 of 1 messages"):
        sent(b"a").rewind(5)

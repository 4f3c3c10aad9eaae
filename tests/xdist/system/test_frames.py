"""Frames: whole however they are chopped, bounded before memory is taken, sealed with a secret."""

import os
import resource
import socket
import struct
import threading

import pytest

from torch_xdist.system import frames
from torch_xdist.system.errors import FrameError, SealError
from torch_xdist.system.frames import Decoder, Frame, Link

BIG = bytes(range(256)) * (1 << 14)  # 4 MiB: more than a socket's buffer


@pytest.fixture
def pair():
    """Two connected links."""
    ours, theirs = (Link(sock) for sock in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_frames_survive_any_chopping():
    stream = frames.encode({"op": "a"}, b"\0\1", b"") + frames.encode({"op": "b"})
    decoder = Decoder()
    found = [frame for byte in stream for frame in decoder.feed(bytes([byte]))]
    assert found == [Frame({"op": "a"}, (b"\0\1", b"")), Frame({"op": "b"})]
    assert found[0].blob == b"\0\1" and found[1].blob == b""


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"\xff" * 8, "JSON part of 4294967295 bytes; at most 67108864"),
        (b"\0\0\0\2\0\0\0\0[]", "is no JSON object"),
        (b"\0\0\0\2\0\0\0\0{[", "is no JSON"),
        (b"", "0 bytes hold 0 messages; 1 is needed"),
        (struct.pack("!IHHQ", 2, 1, 0, 1 << 63) + b"{}", "byte strings of 9223372036854775808"),
    ],
)
def test_what_is_no_frame_is_refused(bad, words):
    with pytest.raises(FrameError, match=words):
        frames.decode(bad)


def test_a_stranger_gets_little():
    frame = frames.encode({"op": "a"}, b"x" * 100)
    assert frames.decode(frame, most_json=20, most_blobs=100).blob == b"x" * 100
    with pytest.raises(FrameError, match="byte strings of 100 bytes; at most 99 are read here"):
        frames.decode(frame, most_blobs=99)
    with pytest.raises(FrameError, match="JSON part of 11 bytes; at most 10"):
        frames.decode(frame, most_json=10)


def test_a_size_is_refused_before_its_bytes_arrive():
    head = struct.pack("!IHHQ", 2, 1, 0, 1 << 30)
    with pytest.raises(FrameError, match="at most 1000 are read here"):
        list(Decoder(most_blobs=1000).feed(head))


def test_a_size_beyond_4_gib_is_waited_for_and_takes_no_memory():
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decoder = Decoder()
    assert list(decoder.feed(struct.pack("!IHHQ", 2, 1, 0, 5 << 30) + b"{}" + b"x" * 100)) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 50_000


def test_a_json_part_that_no_reader_takes_is_not_sent(monkeypatch):
    monkeypatch.setattr(frames, "MOST_JSON_BYTES", 10)
    with pytest.raises(FrameError, match="a JSON part of 18 bytes; at most 10 are sent"):
        frames.encode({"op": "too long"})


def test_large_byte_strings_cross_a_socket(pair):
    ours, theirs = pair
    thread = threading.Thread(target=ours.send, args=({"op": "big"}, BIG, b"", BIG[:7]))
    thread.start()
    assert theirs.receive() == Frame({"op": "big"}, (BIG, b"", BIG[:7]))
    thread.join()


def test_many_byte_strings_cross_a_socket(pair):
    ours, theirs = pair
    blobs = [bytes([n % 256]) * 3 for n in range(2000)]
    thread = threading.Thread(target=ours.send, args=({}, *blobs))
    thread.start()
    assert theirs.receive() == Frame({}, tuple(blobs))
    thread.join()


def test_threads_do_not_mix_their_frames(pair):
    ours, theirs = pair
    senders = [
        threading.Thread(target=ours.send, args=({"from": n}, bytes([n]) * (1 << 20)))
        for n in range(4)
    ]
    for sender in senders:
        sender.start()
    for _ in senders:
        message, (blob,), _ = theirs.receive()
        assert blob == bytes([message["from"]]) * (1 << 20)
    for sender in senders:
        sender.join()


def test_the_end_of_a_stream_is_told(pair):
    ours, theirs = pair
    ours.send({"op": "last"})
    ours.close()
    assert theirs.receive() == Frame({"op": "last"})
    assert theirs.is_readable() and theirs.receive() is None
    assert theirs.read_ready() == ([], False)
    assert theirs.send({"op": "to nobody"}) is False


def test_what_is_ready_is_read_without_waiting(pair):
    ours, theirs = pair
    assert theirs.read_ready() == ([], True) and not theirs.is_readable()
    ours.send({"op": "a"})
    assert theirs.is_readable()
    ours.send({"op": "b"})
    assert theirs.read_ready() == ([Frame({"op": "a"}), Frame({"op": "b"})], True)


def test_descriptors_travel_with_their_frame_and_are_closed_on_exec(pair):
    ours, theirs = pair
    ends = [os.pipe() for _ in range(3)]
    ours.send({"op": "none"})
    ours.send({"op": "two"}, b"with bytes", descriptors=[ends[0][1], ends[1][1]])
    ours.send({"op": "one"}, descriptors=[ends[2][1]])
    found = [theirs.receive() for _ in range(3)]
    assert [(f.message["op"], len(f.descriptors)) for f in found] == [
        *(("none", 0), ("two", 2), ("one", 1))
    ]
    arrived = [fd for frame in found for fd in frame.descriptors]
    for (read, written), fd in zip(ends, arrived, strict=True):
        assert not os.get_inheritable(fd)
        os.write(fd, b"!")
        assert os.read(read, 1) == b"!"
        for end in (read, written, fd):
            os.close(end)


def test_descriptors_that_nobody_took_are_closed(pair):
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    read, written = os.pipe()
    ours.send({"op": "a"})
    ours.send({"op": "b"}, descriptors=[read, written])
    os.close(read)
    os.close(written)
    theirs.receive()
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_descriptors_that_do_not_fit_into_this_process_are_an_error(pair):
    ours, theirs = pair
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    ours.send({"op": "a"}, descriptors=[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(FrameError, match="too many files open"):
            theirs.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_descriptors_than_the_kernel_passes_are_refused(pair):
    with pytest.raises(FrameError, match="251 descriptors; the kernel passes 250 at once"):
        pair[0].send({}, descriptors=[0] * 251)


def test_descriptors_that_are_announced_must_come(pair):
    ours, theirs = pair
    ours.sock.sendall(struct.pack("!IHH", 2, 0, 1) + b"{}")
    with pytest.raises(FrameError, match="1 descriptors are announced, and 0 came"):
        theirs.receive()


def test_a_memory_file_holds_what_no_socket_buffer_does():
    fd = frames.to_memory_file(BIG)
    assert frames.from_memory_file(fd) == BIG == frames.from_memory_file(fd)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_frame_that_came_with_an_earlier_one_is_ready():
    ours, theirs = map(Link, socket.socketpair())
    theirs.send({"op": "job"})
    theirs.send({"op": "stop"})
    assert ours.receive() == Frame({"op": "job"})
    assert ours.read_ready() == ([Frame({"op": "stop"})], True)
    assert ours.read_ready() == ([], True)
    theirs.close()
    assert ours.read_ready() == ([], False)
    ours.close()


def test_only_the_secret_and_the_place_open_a_seal():
    sealed = frames.seal(b"secret", "here/0", b"payload")
    assert frames.unseal(b"secret", "here/0", sealed) == b"payload"
    for secret, place, data in (
        (b"other", "here/0", sealed),
        (b"secret", "here/1", sealed),
        (b"secret", "here/0", sealed[:-1] + b"!"),
        (b"secret", "here/0", b"short"),
        (b"secret", "here/0", b""),
    ):
        with pytest.raises(SealError, match=f"{place}: {len(data)} bytes without the seal"):
            frames.unseal(secret, place, data)


def test_without_a_secret_nothing_is_sealed():
    with pytest.raises(SealError, match="has no job secret to seal with"):
        frames.seal(b"", "here/0", b"payload")
    with pytest.raises(SealError, match="has no job secret"):
        frames.unseal(b"", "here/0", b"payload" * 10)

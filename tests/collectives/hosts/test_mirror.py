"""What travels over a wire, and what is done with what should not."""

import mmap
import socket
import struct
import threading

import numpy as np
import pytest

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.hosts.mirror import Wire, mirror
from torch_xdist.collectives.shared_memory.segment import Segment

SLOT = 4096


class Ends:
    """The own segment of member 0, and member 0's mirror in the memory of member 1's host."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        self.wire = Wire(1, ours)
        self.raw = ours
        self.own, _ = self.host()
        self.there, memory = self.host()
        self.other = Segment(memory, (0, 1), 1, SLOT, slots=4)
        self.thread = threading.Thread(target=mirror, args=(theirs, self.there), daemon=True)
        self.thread.start()

    def host(self):
        memory = mmap.mmap(-1, Segment.size_bytes(2, SLOT, 4))
        return Segment(memory, (0, 1), 0, SLOT, slots=4), memory

    def end(self):
        self.wire.close()
        self.thread.join(5)


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.end()


def wait(ends):
    """Member 1 comes to its barrier, too."""
    ends.other.announce("all_gather", "float32[2]")
    ends.other.barrier()


def test_a_barrier_brings_the_note_and_the_bytes_that_are_needed(ends):
    ends.own.announce("all_gather", "float32[2]")
    slot = ends.own.own_slot()
    slot[:] = np.arange(SLOT) % 251
    ends.own.arrive()
    ends.wire.barrier(ends.own.note, slot, [(8, 16), (100, 4000)], pytest.fail)
    wait(ends)
    ends.other.check()
    got = ends.other.slot(0)
    assert (got[8:16] == slot[8:16]).all() and (got[100:4000] == slot[100:4000]).all()
    assert not got[:8].any() and not got[4000:].any()


def test_a_failure_is_known_there(ends):
    ends.wire.failed("MismatchError", "it has failed; see here")
    ends.wire.failed("SystemExit", "a class that is none of ours")
    ends.end()
    with pytest.raises(CollectiveError, match="rank 0 has failed in this group: a class that is"):
        wait(ends)


def test_a_wire_that_ends_says_that_nothing_comes_any_more(ends):
    assert not ends.other.has_left(0)
    ends.end()
    assert ends.other.has_left(0)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("!BHI", 0, 0, 5000),
        struct.pack("!BHIII", 0, 1, 0, 0, SLOT + 1),
        struct.pack("!BHIII", 0, 1, 0, 16, 8),
    ],
)
def test_what_does_not_fit_is_not_written_and_ends_the_wire(ends, frame):
    ends.raw.sendall(frame + bytes(2 * SLOT))
    ends.thread.join(5)
    assert ends.other.has_left(0)
    assert not ends.other.slot(0).any()
    assert ends.there.barriers == 0


def test_a_full_wire_looks_around_and_is_dead_when_that_raises():
    ours, theirs = socket.socketpair()
    wire, looks = Wire(1, ours), []

    def look():
        looks.append(1)
        if len(looks) == 2:
            raise CollectiveError("the group has failed")

    with theirs, pytest.raises(CollectiveError, match="the group has failed"):
        wire.barrier(np.zeros(8, np.uint8), np.zeros(2**24, np.uint8), [(0, 2**24)], look)
    assert wire.is_dead
    wire.barrier(np.zeros(8, np.uint8), np.zeros(8, np.uint8), [(0, 8)], pytest.fail)


def test_a_wire_whose_reader_is_gone_is_dead_and_no_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    wire = Wire(1, ours)
    wire.barrier(np.zeros(8, np.uint8), np.zeros(8, np.uint8), [(0, 8)], pytest.fail)
    assert wire.is_dead

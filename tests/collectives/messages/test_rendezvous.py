"""Ranks that meet under a tag: all are told, whatever telling one of them does."""

import pytest

from torch_xdist.collectives.messages.rendezvous import Rendezvous


def test_all_are_told_though_telling_one_of_them_fails():
    meeting, told = Rendezvous(keeper=0), []

    def done(rank):
        def tell(outcome):
            told.append((rank, outcome))
            if rank == 1:
                raise OSError("no room")

        return tell

    for rank in (0, 1, 2):
        assert not meeting.arrive("start", (0, 1, 2, 3), rank, b"%d" % rank, done(rank))
    with pytest.raises(OSError, match="no room"):
        meeting.arrive("start", (0, 1, 2, 3), 3, b"3", done(3))
    assert told == [(rank, [b"0", b"1", b"2", b"3"]) for rank in (1, 2, 3, 0)]

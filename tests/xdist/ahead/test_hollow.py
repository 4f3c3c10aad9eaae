"""Buffers that hold nothing."""

import numpy as np

from torch_xdist.ahead.hollow import TALLY, Hollow


def test_a_buffer_is_counted_until_it_is_given_away_or_dropped():
    before = TALLY.live_bytes
    first, second = Hollow((1 << 20, 1 << 10), np.dtype("float32")), Hollow((8,), np.dtype("int8"))
    assert TALLY.live_bytes - before == (4 << 30) + 8
    first.delete()
    assert first.is_deleted() and TALLY.live_bytes - before == 8
    del first, second
    assert TALLY.live_bytes == before


def test_what_is_read_is_zeros_and_that_is_told_once(capsys, monkeypatch):
    monkeypatch.setattr(TALLY, "has_told", False)
    buffer = Hollow((2, 3), np.dtype("int32"))
    assert np.asarray(buffer).tolist() == [[0, 0, 0], [0, 0, 0]]
    np.asarray(buffer)
    assert capsys.readouterr().err.count("what is read from the device is zeros") == 1


def test_small_arrays_from_the_host_are_what_they_were():
    assert np.asarray(Hollow.of(np.arange(3))).tolist() == [0, 1, 2]
    assert not np.asarray(Hollow.of(np.ones(1 << 20))).any()
    assert Hollow.of(np.ones((2, 2))).nbytes == 32


def test_a_copy_has_its_own_memory_and_the_same_values():
    before = TALLY.live_bytes
    first = Hollow.of(np.arange(4))
    second = first.copy()
    assert TALLY.live_bytes - before == 64
    first.delete()
    assert np.asarray(second).tolist() == [0, 1, 2, 3]

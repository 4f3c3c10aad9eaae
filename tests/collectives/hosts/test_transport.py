"""Ranks of several hosts that differ, come late, fail or end; and who else comes to their doors."""

import signal
import socket
import time

import numpy as np
import pytest

from torch_xdist.collectives.errors import CollectiveError, JoinError, StrangerError
from torch_xdist.collectives.hosts import transport, wires

MANY = 3_000_000


def differs(rank, size, count):
    """Rank 3 brings one element more; then all agree."""
    from rank_programs import summing

    from torch_xdist.collectives.errors import MismatchError

    reduce = summing()
    reduce(np.ones(count, np.float32))
    with pytest.raises(MismatchError) as caught:
        reduce(np.ones(count + (rank == 3), np.float32), "train.py:7")
    return str(caught.value), float(reduce(np.ones(count, np.float32))[0])


@pytest.mark.parametrize("count", [3, MANY])
def test_ranks_of_two_hosts_that_differ_are_told_so_and_the_next_call_works(good, count):
    for told, total in good((2, 2), differs, count):
        assert (
            f"ranks 0, 1 and 2 called all_reduce(sum) of float32[{count}] #2 (train.py:7)" in told
        )
        assert f"; rank 3 called all_reduce(sum) of float32[{count + 1}] #2 (train.py:7)" in told
        assert total == 4.0


def elsewhere(rank, size):
    """Ranks 0 and 3 wait in a group of theirs, 1 and 2 for all."""
    from rank_programs import summing

    from torch_xdist.collectives.errors import CollectiveError

    pair, everybody = summing(((0, 3), (1,), (2,))), summing()
    everybody(np.ones(2, np.float32))
    pair(np.ones(2, np.float32))
    start_s = time.monotonic()
    with pytest.raises(CollectiveError) as caught:
        (pair if rank == 0 else everybody)(np.ones(2, np.float32), "train.py:9")
    return str(caught.value), time.monotonic() - start_s


def test_ranks_of_two_hosts_that_wait_for_each_other_in_two_groups_are_told(good):
    found = good((2, 2), elsewhere)
    assert max(waited_s for _, waited_s in found) < 10
    told = [text for text, _ in found if "while rank" in text and "and waits there" in text]
    assert any("all_reduce(sum) in groups [[0, 3], [1], [2]]" in text for text in told)


def loses_one(rank, size, count):
    """Rank 2 is killed while the others wait for it."""
    import os

    from rank_programs import summing

    from torch_xdist.collectives.errors import RankLostError

    reduce = summing()
    reduce(np.ones(count, np.float32))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    start_s = time.monotonic()
    with pytest.raises(RankLostError) as caught:
        reduce(np.ones(count, np.float32), "train.py:7")
    return str(caught.value), time.monotonic() - start_s, os.getpid()


@pytest.mark.parametrize("per_host", [(2, 2), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("count", [3, MANY])
def test_a_killed_rank_is_named_on_all_hosts(between_hosts, per_host, count):
    outcomes = between_hosts(per_host, loses_one, count)
    assert outcomes[2] == (False, "died with exit code -9")
    for rank, (is_good, found) in enumerate(outcomes):
        if rank != 2:
            assert is_good, found
            told, waited_s, _ = found
            assert "rank 2 (pid " in told and "(pid 0)" not in told
            assert f") has ended after all_reduce(sum) of float32[{count}] #1" in told
            assert waited_s < 5


def fails_alone(rank, size):
    """Rank 1 leaves a collective alone with an error; another host is told why."""
    from rank_programs import summing

    from torch_xdist.collectives.errors import CollectiveError
    from torch_xdist.collectives.shared_memory import transport as shared_memory

    reduce = summing()
    reduce(np.ones(2, np.float32))
    if rank == 1:
        time.sleep(0.5)  # all are through with the first one
        shared = shared_memory.endpoint()._segment(tuple(range(size)))
        shared.fail(MemoryError("no room"))
        return None
    start_s = time.monotonic()
    with pytest.raises(CollectiveError) as caught:
        reduce(np.ones(2, np.float32))
    return str(caught.value), time.monotonic() - start_s


def test_why_a_rank_has_failed_is_known_on_the_other_hosts(good):
    for rank, found in enumerate(good((2, 2), fails_alone)):
        if rank != 1:
            assert "rank 1 has failed in this group: MemoryError('no room')" in found[0]
            assert found[1] < 5


def late(rank, size):
    """Rank 3 sleeps; a rank that sends it much waits without an error."""
    from rank_programs import summing

    reduce = summing()
    reduce(np.ones(MANY, np.float32))
    if rank == 3:
        time.sleep(5)
    return float(reduce(np.ones(MANY, np.float32))[0])


def test_a_late_rank_is_waited_for(good):
    assert good((2, 2), late) == [4.0] * 4


def stopped(rank, size, pids):
    """Rank 0 has rank 3 stopped for some seconds in the middle of its collectives."""
    import os
    import subprocess

    from rank_programs import summing

    from torch_xdist.collectives.messages import communicator

    pid = communicator.all_gather("pid", os.getpid())[3]
    if rank == 0:
        subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -STOP {pid}; sleep 4; kill -CONT {pid}"])
    reduce, totals, start_s = summing(), set(), time.monotonic()
    for _ in range(40):
        totals.add(float(reduce(np.ones(MANY, np.float32))[0]))
        time.sleep(0.02)
    return totals, time.monotonic() - start_s


def test_a_rank_that_is_stopped_for_a_while_costs_no_more_than_that(good):
    for totals, taken_s in good((2, 2), stopped, (), timeout_s=100):
        assert totals == {4.0}
        assert taken_s > 4


def without_a_secret(rank, size):
    from rank_programs import summing

    from torch_xdist.collectives.messages import communicator

    return float(summing()(np.ones(3, np.float32))[0]), communicator.current().is_authenticated


def test_ranks_without_a_secret_exchange_and_believe_no_pickles(good):
    assert good((1, 1), without_a_secret, secret=b"") == [(2.0, False)] * 2


class Store:
    """A store that holds one value everywhere."""

    def __init__(self, value):
        self.value = value

    def get(self, place, wait_s):
        return self.value


def test_a_rank_that_tells_no_host_is_an_error_that_says_so():
    with pytest.raises(
        JoinError, match="nobody told the host of rank 1 within 2 s; all ranks must"
    ):
        transport._host_of(1, Store(None), 2.0)


def test_a_rank_that_tells_of_its_host_what_is_none_is_refused():
    with pytest.raises(
        CollectiveError, match="told b'7' of its host, which no rank of this release"
    ):
        transport._host_of(1, Store(b"7"), 2.0)
    with pytest.raises(CollectiveError, match="told b'cos"):
        transport._host_of(1, Store(b"cos\nsystem\n"), 2.0)


def test_messages_between_programs_are_not_sent_from_inside_of_one():
    with pytest.raises(
        CollectiveError, match="send: a message between hosts goes through the chan"
    ):
        transport._refuse(None)


@pytest.fixture
def door():
    """A door, and what has come in there."""
    came = []
    yield wires.Door("127.0.0.1", b"secret", lambda sock, hello: came.append(hello)), came


def test_who_knows_the_secret_comes_in(door):
    at, came = door
    wires.dial(1, 0, at.where, b"secret", {"rank": 1}).close()
    limit_s = time.monotonic() + 5
    while not came and time.monotonic() < limit_s:
        time.sleep(0.01)
    assert came == [{"rank": 1}]


def test_who_does_not_know_it_is_refused_before_anything_is_read(door):
    at, came = door
    with pytest.raises(StrangerError, match="another XLA_RUN_SECRET, listens"):
        wires.dial(1, 0, at.where, b"guessed", {"rank": 1})
    host, _, port = at.where.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as sock:
        sock.sendall(b"x" * 100)
        sock.settimeout(5)
        with pytest.raises(ConnectionResetError):
            wires.exactly(sock, 100)
    assert came == []


def test_a_host_that_cannot_be_reached_is_named(monkeypatch):
    monkeypatch.setattr(wires, "_DIAL_S", 0.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(CollectiveError, match=f"rank 1 cannot reach rank 0 at 127.0.0.1:{port} "):
        wires.dial(1, 0, f"127.0.0.1:{port}", b"secret", {})

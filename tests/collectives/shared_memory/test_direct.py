"""Arrays that members read and write in each other's memory; here the members are threads."""

import mmap
import os
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from torch_xdist.collectives.errors import CollectiveError, MismatchError, RankLostError
from torch_xdist.collectives.shared_memory import algorithms, direct
from torch_xdist.collectives.shared_memory.segment import Segment

DTYPES = (np.bool_, np.int8, np.int32, np.uint64, np.float16, ml_dtypes.bfloat16, np.float32)
DTYPES += (np.float64, np.complex64, ml_dtypes.float8_e5m2)
SIZE = 9_001


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Small arrays are large ones here."""
    monkeypatch.setattr(algorithms, "CHUNK_BYTES", 2**12)
    monkeypatch.setattr(algorithms, "_DIRECT_BYTES", 2**9)
    monkeypatch.setattr(direct, "_CHUNK_BYTES", 2**10)


class Watched:
    """What a member knows of the others."""

    def __init__(self, ended=()):
        self.ended = ended

    def pid(self, rank):
        return 4242 if rank in self.ended else os.getpid()

    def has_ended(self, rank):
        return rank in self.ended

    def begin(self, ranks, call):
        return lambda rank: ""


class Members:
    """Some members of one group, each on a thread; `directly`: whether they try to read."""

    def __init__(self, count, directly=True):
        self.count, self.refusals = count, []
        slot_bytes = algorithms.slot_bytes(count)
        memory = mmap.mmap(-1, Segment.size_bytes(count, slot_bytes))
        self.ends = [
            Segment(
                *(memory, tuple(range(count)), member, slot_bytes),
                watch=Watched(),
                on_unreadable=(lambda: self.refusals.append(1)) if directly else None,
            )
            for member in range(count)
        ]

    def run(self, work):
        results = [None] * self.count

        def of(member):
            try:
                results[member] = work(self.ends[member])
            except Exception as error:
                results[member] = error

        threads = [
            threading.Thread(target=of, args=(m,), name=f"member {m}") for m in range(self.count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return results


def reduced(reduction, dtype, shapes=((SIZE,),), in_place=True):
    def work(end):
        drawn = np.random.default_rng(end.member)
        xs = [drawn.integers(0, 7, shape).astype(dtype) for shape in shapes]
        outs = xs if in_place else [np.empty_like(x) for x in xs]
        algorithms.all_reduce(end, reduction, reduction, xs, outs)
        return [out.tobytes() for out in outs]

    return work


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda kind: np.dtype(kind).name)
def test_every_dtype_gives_the_bits_that_it_gives_through_shared_memory(count, dtype):
    members = Members(count)
    found = members.run(reduced("sum", dtype))
    assert found == Members(count, directly=False).run(reduced("sum", dtype))
    assert members.ends[0].directly is not None and members.refusals == []


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("reduction", ["mul", "min", "max", "and", "or", "xor"])
def test_the_other_reductions_too_in_place_or_not(reduction, in_place):
    work = reduced(reduction, np.int32, in_place=in_place)
    assert Members(3).run(work) == Members(3, directly=False).run(work)


def test_several_arrays_are_one():
    work = reduced("sum", np.float32, shapes=[(3, 401), (0,), (), (2, 2, 999), (5,)])
    assert Members(4).run(work) == Members(4, directly=False).run(work)


def test_a_large_array_takes_two_barriers_whatever_its_size():
    members = Members(3)
    members.run(reduced("sum", np.float32))
    before = members.ends[0].barriers
    members.run(reduced("sum", np.float32, shapes=[(40_000,)]))
    assert members.ends[0].barriers == before + 2


def test_members_that_cannot_read_each_other_find_it_out_together_once(monkeypatch):
    def refused(pid, address, out):
        if threading.current_thread().name == "member 1":
            raise PermissionError(1, "Operation not permitted")
        direct._copy(direct._readv, pid, address, out)

    monkeypatch.setattr(direct, "read", refused)
    members, work = Members(3), reduced("sum", np.float32)
    expected = Members(3, directly=False).run(work)
    for _ in range(2):
        assert members.run(work) == expected
        assert members.refusals == [1, 1, 1]
    assert all(end.directly is None for end in members.ends)


def test_a_number_of_a_process_that_is_another_one_here_is_noticed(monkeypatch):
    monkeypatch.setattr(direct, "read", lambda pid, address, out: out.fill(7))
    members = Members(2)
    members.run(reduced("sum", np.float32))
    assert members.refusals == [1, 1]


def test_other_calls_are_refused_before_anything_is_read():
    def work(end):
        x = np.ones(SIZE + end.member, np.float32)
        algorithms.all_reduce(end, "all_reduce(sum)", "sum", [x], [x])

    assert all(isinstance(one, MismatchError) for one in Members(2).run(work))


def failing(monkeypatch, ended):
    """What member 0 says where the memory of member 1 is gone after their first all-reduce."""
    members = Members(2)
    members.run(reduced("sum", np.float32))
    monkeypatch.setattr(direct, "_ENDS_S", 0.1)

    def gone(pid, address, out):
        raise OSError(3, "No such process")

    monkeypatch.setattr(direct, "read", gone)
    for end in members.ends:
        end.watch.ended = ended
    return members.run(reduced("sum", np.float32))[0]


def test_a_rank_that_ended_meanwhile_is_named(monkeypatch):
    error = failing(monkeypatch, ended=(1,))
    assert isinstance(error, RankLostError)
    told = r"rank 1 \(pid 4242\) has ended in sum of float32\[9001\] #2, while rank 0 read what it"
    with pytest.raises(RankLostError, match=told):
        raise error


def test_a_rank_whose_memory_was_closed_to_the_others_is_named(monkeypatch):
    error = failing(monkeypatch, ended=())
    with pytest.raises(CollectiveError, match=r"the memory of rank 1 .* cannot be read any more"):
        raise error
    assert "(No such process), which it could before; look whether somebody" in str(error)


def test_memory_of_no_process_is_an_error():
    x = np.zeros(10, np.uint8)
    direct.write(os.getpid(), x.ctypes.data, np.arange(10, dtype=np.uint8))
    assert x.tolist() == [*range(10)]
    with pytest.raises(OSError, match="Bad address"):
        direct.read(os.getpid(), 8, x)
    with pytest.raises(ProcessLookupError):
        direct.read(2**22 - 1, x.ctypes.data, x)


def test_a_member_that_fails_leaves_when_the_others_have_stopped_to_write(monkeypatch):
    members, events, writing = Members(2), [], threading.Event()
    members.run(reduced("sum", np.float32))
    write = direct.write

    def slowly(pid, address, data):
        if threading.current_thread().name == "member 1":
            writing.set()
            time.sleep(0.3)
            write(pid, address, data)
            events.append("written")

    def fold(self, segment, *arguments):
        if segment.member == 0:
            writing.wait(20)
            raise MemoryError("no room for a chunk")
        return folds(self, segment, *arguments)

    folds = direct.Directly._fold
    monkeypatch.setattr(direct, "write", slowly)
    monkeypatch.setattr(direct.Directly, "_fold", fold)

    def work(end):
        x = np.ones(SIZE, np.float32)
        try:
            algorithms.all_reduce(end, "sum", "sum", [x], [x])
        except Exception as error:
            end.fail(error)
            events.append(f"{end.member} left")
            raise

    first, second = members.run(work)
    assert isinstance(first, MemoryError)
    assert "rank 0 has failed in this group: MemoryError('no room for a chunk')" in str(second)
    assert events[0] == "written" and sorted(events[1:]) == ["0 left", "1 left"]
    assert "cannot be used again" in str(members.run(work)[0])


def breaks_off(rank, size):
    """Rank 0 runs out of memory after it has begun; all call again afterwards."""
    from rank_programs import summing

    from torch_xdist.collectives.errors import CollectiveError
    from torch_xdist.collectives.shared_memory import direct

    def folds(self, *arguments):
        raise MemoryError("no room for a chunk")

    reduce, fold, found = summing(), direct.Directly._fold, []
    whole = reduce(np.full(3_000_000, rank + 1, np.float32))
    found.append((whole.min(), whole.max()))
    try:
        if rank == 0:
            direct.Directly._fold = folds
        for _ in range(2):
            try:
                reduce(np.ones(3_000_000, np.float32))
            except (CollectiveError, MemoryError) as error:
                found.append(f"{type(error).__name__}: {error}")
    finally:
        direct.Directly._fold = fold
    return found


def test_processes_add_in_each_others_memory_until_one_fails(pool):
    first, second = pool.run(2, breaks_off)
    assert first[0] == second[0] == (3.0, 3.0)
    assert first[1] == "MemoryError: no room for a chunk"
    assert "rank 0 has failed in this group: MemoryError('no room for a chunk')" in second[1]
    assert "cannot be used again" in first[2] and "cannot be used again" in second[2]


def reads(rank, size):
    """Whether the ranks of this pool, siblings as those of a launcher, read each other's memory."""
    from rank_programs import summing

    from torch_xdist.collectives.shared_memory import transport

    summing()(np.ones(3_000_000, np.float32))
    (segment,) = transport.endpoint()._segments.values()
    return segment.directly is not None


def test_processes_of_one_parent_may_read_each_other(pool):
    assert pool.run(4, reads) == [True] * 4

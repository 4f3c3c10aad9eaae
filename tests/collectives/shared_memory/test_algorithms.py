"""The collectives on numpy arrays, between threads that share memory, against plain numpy."""

import mmap
import threading

import ml_dtypes
import numpy as np
import pytest

from torch_xdist.collectives.errors import MismatchError
from torch_xdist.collectives.shared_memory import algorithms
from torch_xdist.collectives.shared_memory.segment import Caller, Segment

COUNTS = (1, 2, 3, 4, 8)
DTYPES = (
    np.bool_,
    np.uint8,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint16,
    np.uint32,
    np.uint64,
    np.float16,
    ml_dtypes.bfloat16,
    np.float32,
    np.float64,
    np.complex64,
    np.complex128,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 8 KiB, so that small arrays take many of them."""
    monkeypatch.setattr(algorithms, "CHUNK_BYTES", 2**13)
    monkeypatch.setattr(algorithms, "_DIRECT_BYTES", 2**10)


def on_members(count, work):
    """`work(segment)` on `count` threads, each with its end of one memory; what each returned."""
    slot_bytes = algorithms.slot_bytes(count)
    memory = mmap.mmap(-1, Segment.size_bytes(count, slot_bytes))
    results = [None] * count

    def run(member):
        end = Segment(memory, tuple(range(count)), member, slot_bytes)
        try:
            results[member] = work(end)
        except Exception as error:
            results[member] = error

    threads = [threading.Thread(target=run, args=(member,)) for member in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def values(member, shape, dtype=np.float32):
    drawn = np.random.default_rng(member).integers(0, 5, shape)
    return drawn.astype(dtype)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", [0, 1, 7, 2_000, 13_001])
def test_all_reduce_adds_in_order_of_members(count, size):
    def work(end):
        x = values(end.member, size)
        out = np.empty_like(x)
        algorithms.all_reduce(end, "all_reduce(sum)", "sum", [x], [out])
        return out

    expected = sum((values(m, size) for m in range(count)), np.zeros(size, np.float32))
    for result in on_members(count, work):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda kind: np.dtype(kind).name)
def test_all_reduce_of_every_dtype(dtype):
    def work(end):
        x = values(end.member, (3, 5), dtype)
        algorithms.all_reduce(end, "all_reduce(sum)", "sum", [x], [x])
        return x

    wide = np.promote_types(np.float32, dtype) if np.dtype(dtype).kind == "V" else dtype
    wide = np.float32 if dtype in (np.float16, *DTYPES[-2:], ml_dtypes.bfloat16) else wide
    expected = sum(values(m, (3, 5), dtype).astype(wide) for m in range(3)).astype(dtype)
    for result in on_members(3, work):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("reduction", "ufunc"),
    [
        ("mul", np.multiply),
        ("min", np.minimum),
        ("max", np.maximum),
        ("and", np.bitwise_and),
        ("or", np.bitwise_or),
        ("xor", np.bitwise_xor),
    ],
)
@pytest.mark.parametrize("size", [6, 7_000])
def test_the_other_reductions_equal_numpys(reduction, ufunc, size):
    def work(end):
        x = values(end.member, size, np.int32)
        algorithms.all_reduce(end, reduction, reduction, [x], [x])
        return x

    expected = ufunc.reduce([values(m, size, np.int32) for m in range(3)])
    for result in on_members(3, work):
        np.testing.assert_array_equal(result, expected)


def test_nan_wins_in_min_and_max():
    def work(end):
        x = np.array([np.nan if end.member == 1 else 1.0, 2.0], np.float32)
        algorithms.all_reduce(end, "max", "max", [x], [x])
        return x

    for result in on_members(2, work):
        np.testing.assert_array_equal(result, [np.nan, 2.0])


@pytest.mark.parametrize("scale", [1, 400])
def test_several_arrays_travel_as_one_and_in_place(scale):
    shapes = [(3, scale), (0,), (), (2, 2, scale), (5,)]

    def work(end):
        xs = [values(end.member * 10 + i, shape) for i, shape in enumerate(shapes)]
        algorithms.all_reduce(end, "all_reduce(sum)", "sum", xs, xs)
        return xs

    for results in on_members(3, work):
        for i, shape in enumerate(shapes):
            expected = sum(values(m * 10 + i, shape) for m in range(3))
            np.testing.assert_array_equal(results[i], expected)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (30_001,)])
def test_all_gather_stacks_by_member(count, shape):
    def work(end):
        out = np.empty((count, *shape), np.uint8)
        algorithms.all_gather(end, "all_gather", values(end.member, shape, np.uint8), out)
        return out

    expected = np.stack([values(m, shape, np.uint8) for m in range(count)])
    for result in on_members(count, work):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("width", [0, 3, 7_001])
def test_all_to_all_exchanges_rows(count, width):
    def work(end):
        x = values(end.member, (count, width), np.int32)
        out = np.empty_like(x)
        algorithms.all_to_all(end, "all_to_all", x, out)
        return out

    for member, result in enumerate(on_members(count, work)):
        rows = [values(m, (count, width), np.int32)[member] for m in range(count)]
        np.testing.assert_array_equal(result, np.stack(rows))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("width", [0, 3, 7_001])
def test_reduce_scatter_folds_the_own_row(count, width):
    def work(end):
        x = values(end.member, (count, width), np.int32)
        out = np.empty(width, np.int32)
        algorithms.reduce_scatter(end, "reduce_scatter(sum)", "sum", x, out)
        return out

    for member, result in enumerate(on_members(count, work)):
        rows = [values(m, (count, width), np.int32)[member] for m in range(count)]
        np.testing.assert_array_equal(result, np.sum(rows, axis=0))


@pytest.mark.parametrize("size", [0, 4, 30_000])
def test_permute_moves_and_zeroes(size):
    def work(end):
        out = np.full(size, 9, np.uint8)
        algorithms.permute(end, "permute", [-1, 0, 0], values(end.member, size, np.uint8), out)
        return out

    zeros, one, two = on_members(3, work)
    assert not zeros.any()
    np.testing.assert_array_equal(one, values(0, size, np.uint8))
    np.testing.assert_array_equal(two, values(0, size, np.uint8))


def test_many_calls_in_a_row_do_not_mix_up():
    def work(end):
        seen = []
        for turn in range(100):
            x = np.array([turn * 10 + end.member])
            algorithms.all_reduce(end, "all_reduce(sum)", "sum", [x], [x])
            seen.append(int(x[0]))
        return seen

    expected = [turn * 30 + 3 for turn in range(100)]
    assert on_members(3, work) == [expected] * 3


def test_different_shapes_name_every_rank_and_leave_the_memory_usable():
    def work(end):
        x = np.ones((2, 3 + (end.member == 1)), np.float32)
        try:
            algorithms.all_reduce(end, "all_reduce(sum)", "sum", [x], [x])
        except MismatchError as error:
            message = str(error)
        y = np.ones(1)
        algorithms.all_reduce(end, "all_reduce(sum)", "sum", [y], [y])
        return message, float(y[0])

    for message, total in on_members(3, work):
        assert "ranks 0 and 2 called all_reduce(sum) of float32[2, 3] #1" in message
        assert "rank 1 called all_reduce(sum) of float32[2, 4] #1" in message
        assert total == 3.0


def test_different_collectives_name_both_and_the_line():
    def work(end):
        end.caller = Caller(f"train.py:{end.member}")
        x = np.ones(2, np.float32)
        if end.member:
            return algorithms.all_gather(end, "all_gather", x, np.empty((2, 2), np.float32))
        return algorithms.all_reduce(end, "all_reduce(sum)", "sum", [x], [x])

    for error in on_members(2, work):
        assert isinstance(error, MismatchError)
        assert "rank 0 called all_reduce(sum) of float32[2] #1 (train.py:0)" in str(error)
        assert "rank 1 called all_gather of float32[2] #1 (train.py:1)" in str(error)


def test_a_file_whose_name_is_no_utf_8_is_named_all_the_same():
    def work(end):
        end.caller = Caller(f"train\udcff.py:{end.member}")
        x = np.ones(2 + end.member, np.float32)
        return algorithms.all_reduce(end, "all_reduce(sum)", "sum", [x], [x])

    for error in on_members(2, work):
        assert isinstance(error, MismatchError)
        assert r"rank 1 called all_reduce(sum) of float32[3] #1 (train\udcff.py:1)" in str(error)

"""Large reductions between real processes, whose values numpy tells."""

import ml_dtypes
import numpy as np
import pytest

KINDS = (
    *(np.float32, np.float64, np.float16, ml_dtypes.bfloat16),
    *(np.int8, np.int32, np.uint8, np.bool_),
)
LARGE = [(2, 2), (2, 1), (1, 1), (1, 2, 2)]


def reduces(rank, size):
    """What is wrong with all-reduces and reduce-scatters of much data."""
    from torch_xdist.collectives.shared_memory import transport
    from torch_xdist.collectives.shared_memory.endpoint import Spec
    from torch_xdist.collectives.shared_memory.fold import REDUCTIONS

    end, wrong = transport.endpoint(), []
    for dtype in map(np.dtype, KINDS):
        for reduction in ("sum", "mul", "max", "or") if dtype.kind in "iub" else ("sum", "min"):
            # More than a round, no multiple of anything, and small enough to be exact.
            length = (2**21 + 4099) // dtype.itemsize
            few = [np.random.default_rng(r).integers(0, 4, 10_007) for r in range(size)]
            x = [np.resize(one.astype(dtype), length * size) for one in few]
            wide = np.float64 if dtype.kind not in "iub" else dtype
            want = REDUCTIONS[reduction].reduce([one.astype(wide) for one in x]).astype(dtype)
            mine, first, row = x[rank], x[rank][:5].copy(), np.empty(length, dtype)
            spec = Spec("reduce_scatter", "reduce_scatter", reduction)
            end.run(spec, 0, [mine.reshape(size, length)], [row])
            spec = Spec("all_reduce", "all_reduce", reduction)
            end.run(spec, 0, [mine, first], [mine, first])  # in place, as programs do
            good = (mine == want, first == want[:5], row == want[rank * length :][:length])
            if not all(one.all() for one in good):
                wrong.append(f"{reduction} of {dtype}: {[float(one.mean()) for one in good]}")
    return wrong


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "per_host", [LARGE[0], *(pytest.param(one, marks=pytest.mark.long) for one in LARGE[1:])]
)
def test_large_reductions_are_right_in_every_dtype(good, per_host):
    assert good(per_host, reduces, timeout_s=180) == [[]] * sum(per_host)


def sums_of_noise(rank, size):
    """A sum that depends on the order, and one of which a 16-bit float would lose parts."""
    from rank_programs import summing

    noise = np.random.default_rng(rank).standard_normal(3_000_001).astype(np.float32)
    total = summing()(noise)
    lost = np.full(2**21, [256.0, 1.0, 0.0, 1.0][rank], ml_dtypes.bfloat16)
    return np.asarray(total).tobytes(), set(np.asarray(summing()(lost)).astype(float))


def test_every_rank_gets_the_same_bits_and_narrow_floats_are_rounded_once(good):
    found = good((2, 2), sums_of_noise)
    assert len({bits for bits, _ in found}) == 1
    # 256 + 1 is 256 in bfloat16, 256 + 1 + 1 is not.
    assert [value for _, value in found] == [{258.0}] * 4


def of_groups(rank, size):
    """Groups that cross hosts, one that does not, and ranks in none."""
    from rank_programs import summing

    x = np.full(400_000, rank + 1, np.float32)
    return [
        set(summing(groups)(x).tolist())
        for groups in (((0, 3), (1, 2)), ((3, 1), (0,), (2,)), ((0, 1), (2, 3)))
    ]


def test_groups_may_cross_hosts_or_not(good):
    assert good((2, 2), of_groups) == [
        [{5.0}, {1.0}, {3.0}],
        [{5.0}, {6.0}, {3.0}],
        [{5.0}, {3.0}, {7.0}],
        [{5.0}, {6.0}, {7.0}],
    ]

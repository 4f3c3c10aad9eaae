"""Collectives inside compiled programs, between real processes, against numpy."""

import numpy as np
import pytest

from torch_xdist.collectives import inside
from torch_xdist.collectives.errors import ArgumentError, CollectiveError, DtypeError


def own(rank, shape=(4, 8, 3)):
    return np.random.default_rng(rank).integers(0, 5, shape).astype(np.float32)


def every_collective(rank, size):
    import jax
    import jax.numpy as jnp

    from torch_xdist.collectives import inside

    ring = tuple((r, (r + 1) % size) for r in range(size - 1))

    def step(x, whole):
        with inside.program("host", size) as traced:
            total, count = inside.all_reduce([x, whole], "sum")
            results = {
                "sum": total,
                "count": count,
                "max": inside.all_reduce([x], "max")[0],
                "gather": inside.all_gather(x, -1),
                "gather0": inside.all_gather(x[0, 0, 0], 0),
                "scatter": inside.reduce_scatter(jnp.tile(x, (size, 1, 1)), "sum", 0, size),
                "to_all": inside.all_to_all(jnp.tile(x, (1, size, 1)), 1, 2, size),
                "ring": inside.permute(x, ring),
                "root": inside.broadcast(x, size - 1),
            }
            inside.barrier()
            return results, traced.token

    results, _ = jax.jit(step)(own(rank), np.arange(3, dtype=np.int32) + rank)
    return {name: np.asarray(value) for name, value in results.items()}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_every_collective_in_one_program(pool, size):
    xs = [own(rank) for rank in range(size)]
    for rank, found in enumerate(pool.run(size, every_collective)):
        np.testing.assert_array_equal(found["sum"], np.sum(xs, axis=0))
        np.testing.assert_array_equal(found["count"], np.arange(3) * size + size * (size - 1) // 2)
        np.testing.assert_array_equal(found["max"], np.max(xs, axis=0))
        np.testing.assert_array_equal(found["gather"], np.concatenate(xs, axis=-1))
        np.testing.assert_array_equal(found["gather0"], [x[0, 0, 0] for x in xs])
        np.testing.assert_array_equal(found["scatter"], np.sum(xs, axis=0))
        np.testing.assert_array_equal(found["to_all"], np.concatenate(xs, axis=2))
        sent = xs[rank - 1] if rank else np.zeros_like(xs[0])
        np.testing.assert_array_equal(found["ring"], sent)
        np.testing.assert_array_equal(found["root"], xs[-1])


def in_groups(rank, size):
    import jax

    from torch_xdist.collectives import inside

    pairs = ((0, 3), (1, 2))

    def step(x):
        with inside.program("host", size) as traced:
            parts = (
                inside.all_reduce([x], "sum", pairs)[0],
                inside.all_gather(x, 0, pairs),
                inside.all_reduce([x], "sum", ((0, 1, 2), (3,)))[0],
                inside.broadcast(x, 3, pairs),
            )
            return parts, traced.token

    return [
        np.asarray(part).tolist() for part in jax.jit(step)(np.full(1, rank + 1.0, np.float32))[0]
    ]


def test_groups_reduce_and_gather_apart(pool):
    assert pool.run(4, in_groups) == [
        [[5.0], [1.0, 4.0], [6.0], [4.0]],
        [[5.0], [2.0, 3.0], [6.0], [0.0]],
        [[5.0], [2.0, 3.0], [6.0], [0.0]],
        [[5.0], [1.0, 4.0], [4.0], [4.0]],
    ]


def some_ranks_only(rank, size):
    import jax

    from torch_xdist.collectives import inside

    def step(x):
        with inside.program("host", size) as traced:
            return inside.all_reduce([x], "sum", ((2, 0),))[0], traced.token

    return float(jax.jit(step)(np.float32(rank))[0]) if rank != 1 else None


def test_a_group_of_some_ranks_needs_only_them(pool):
    assert pool.run(3, some_ranks_only) == [2.0, None, 2.0]


def chains(rank, size):
    import jax

    from torch_xdist.collectives import inside

    def step(x):
        with inside.program("host", size) as traced:
            # Unordered, XLA could run these in any order, and differently on each rank.
            parts = [inside.all_reduce([x * k], "sum")[0] for k in range(20)]
            unused = inside.all_reduce([x * 100], "sum")
            del unused
            return parts, traced.token

    program = jax.jit(step)
    for _ in range(3):
        parts, _ = program(np.full(3, 1.0 + rank))
    return [float(part[0]) for part in parts]


def test_many_collectives_keep_their_order_also_those_nobody_reads(pool):
    assert pool.run(2, chains) == [[3.0 * k for k in range(20)]] * 2


def differing(rank, size):
    from rank_programs import summing

    from torch_xdist.collectives.errors import MismatchError

    reduce = summing()
    try:
        reduce(np.zeros(2 + rank, np.float32), f"train.py:{10 + rank}")
    except MismatchError as error:
        return str(error), float(reduce(np.ones((), np.float32)))
    return None


def test_different_shapes_become_the_error_of_the_program(pool):
    for message, good in pool.run(2, differing):
        assert "rank 0 called all_reduce(sum) of float32[2] #1 (train.py:10)" in message
        assert "rank 1 called all_reduce(sum) of float32[3] #1 (train.py:11)" in message
        assert good == 2.0


def crossed(rank, size):
    from rank_programs import summing

    from torch_xdist.collectives.errors import MismatchError

    reduce = summing(None if rank == 0 else ((0, 1), (2,)))
    if rank == 2:
        return None
    try:
        reduce(np.ones(2, np.float32))
    except MismatchError as error:
        return str(error)
    return None


def test_ranks_that_wait_for_each_other_in_different_groups_are_told(pool):
    first, second, _ = pool.run(3, crossed)
    assert "rank 0 called all_reduce(sum) of float32[2] #1, while rank 1 called" in first
    assert "all_reduce(sum) in groups [[0, 1], [2]]" in first
    assert "rank 1 called all_reduce(sum) in groups [[0, 1], [2]]" in second


def traced(function, *arguments, size=2):
    import jax

    return jax.eval_shape(inside.standing_alone(function, size), *arguments)


X = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: inside.all_reduce([x], "avg"), ArgumentError, "reduction 'avg' is unknown"),
        (lambda x: inside.all_reduce([x], "and"), DtypeError, "'and' works on bits, and float32"),
        (
            lambda x: inside.all_reduce([x.astype(complex)], "max"),
            DtypeError,
            "'max' needs an order, which complex",
        ),
        (lambda x: inside.all_gather(x, 2), ArgumentError, "dim 2 is out of range"),
        (
            lambda x: inside.reduce_scatter(x, "sum", 0),
            ArgumentError,
            r"reduce_scatter over 2 ranks: dim 0 of shape \(3, 4\) has size 3, .* pad it by 1",
        ),
        (
            lambda x: inside.reduce_scatter(x, "sum", 1, 3),
            ArgumentError,
            "shard_count is 3, and the group has 2 ranks",
        ),
        (lambda x: inside.all_to_all(x, 1, 0, 4), ArgumentError, "split_count is 4"),
        (lambda x: inside.broadcast(x, 2), ArgumentError, "root 2 is no rank; use 0 to 1"),
        (lambda x: inside.permute(x, ((0, 1), (0, 0))), ArgumentError, "rank 0 is source"),
    ],
)
def test_wrong_arguments_are_refused_while_tracing(function, error, message):
    with pytest.raises(error, match=message):
        traced(function, X)


def test_messages_are_no_part_of_a_program_over_the_mesh():
    for call, name in ((inside.send, "send"), (inside.receive, "recv")):
        with (
            inside.program("mesh", 2),
            pytest.raises(CollectiveError, match=f"{name}: a program over the mesh holds what all"),
        ):
            call(X, 1)


def test_a_collective_outside_a_program_says_what_is_missing():
    with pytest.raises(CollectiveError, match="no program is being traced"):
        inside.all_reduce([X], "sum")
    with (
        pytest.raises(ArgumentError, match="transport 'nccl' is unknown"),
        inside.program("nccl", 1),
    ):
        pass

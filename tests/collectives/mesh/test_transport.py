"""The mesh transport between two processes, over gloo."""

import socket

import numpy as np
import pytest
from rank_pool import RankPool

from torch_xdist.collectives.errors import ArgumentError


def every_collective(rank, size, port):
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from torch_xdist.collectives import inside
    from torch_xdist.collectives.mesh import transport as mesh
    from torch_xdist.collectives.messages import communicator

    mesh.join(rank, size, f"127.0.0.1:{port}")
    ranks = mesh.devices()
    spec = PartitionSpec("ranks")

    def step(x):
        with inside.program("mesh", size):
            return {
                "sum": inside.all_reduce([x, x.astype(jnp.int32)], "sum"),
                "mul": inside.all_reduce([x], "mul")[0],
                "any": inside.all_reduce([x > 1], "or")[0],
                "gather": inside.all_gather(x, 1),
                "scatter": inside.reduce_scatter(jnp.tile(x, (size, 1)), "sum", 0),
                "to_all": inside.all_to_all(jnp.tile(x, (size, 1)), 0, 1),
                "ring": inside.permute(x, ((0, 1),)),
                "root": inside.broadcast(x.astype(jnp.complex64) * jnp.inf, 1),
                "apart": inside.all_reduce([x], "sum", ((0,), (1,)))[0],
            }

    sharded = jax.shard_map(step, mesh=ranks, in_specs=spec, out_specs=spec, check_vma=False)
    local = np.full((1, 2), rank + 1, np.float32)
    wide = jax.make_array_from_process_local_data(NamedSharding(ranks, spec), local)
    results = jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), jax.jit(sharded)(wide))
    letters = communicator.all_gather("ranks", rank), _letters(rank)
    return results, letters


def _letters(rank):
    from torch_xdist.collectives.messages import communicator

    communicator.current().send(1 - rank, "hello", bytes([rank]))
    return communicator.current().receive(1 - rank, "hello")


def test_every_collective_in_one_program():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with RankPool(2) as fresh:
        outcomes = fresh.run(2, every_collective, port, join=False, timeout_s=120)
    for rank, (found, letters) in enumerate(outcomes):
        assert letters == ([0, 1], (1 - rank, bytes([1 - rank])))
        assert [total.tolist() for total in found["sum"]] == [[[3.0, 3.0]], [[3, 3]]]
        assert found["mul"].tolist() == [[2.0, 2.0]]
        assert found["any"].tolist() == [[True, True]]
        assert found["gather"].tolist() == [[1.0, 1.0, 2.0, 2.0]]
        assert found["scatter"].tolist() == [[3.0, 3.0]]
        assert found["to_all"].tolist() == [[1.0, 1.0, 2.0, 2.0]]
        assert found["ring"].tolist() == [[float(rank)] * 2]
        assert np.isinf(found["root"].real).all()
        assert found["apart"].tolist() == [[rank + 1.0] * 2]


def alone(rank, size, port):
    from torch_xdist.collectives.errors import JoinError
    from torch_xdist.collectives.mesh import transport as mesh

    try:
        mesh.join(1, 2, f"127.0.0.1:{port}", timeout_s=1)
    except JoinError as error:
        return str(error)
    return None


def test_a_service_that_is_not_there_is_named():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with RankPool(1) as fresh:
        message = fresh.run(1, alone, port, join=False)[0]
    assert f"rank 1 of 2 could not join the coordination service at 127.0.0.1:{port}" in message


def test_groups_that_leave_ranks_out_are_refused():
    from torch_xdist.collectives import inside

    with (
        inside.program("mesh", 3),
        pytest.raises(ArgumentError, match=r"groups \[\[0, 2\]\] leave out some of the 3 ranks"),
    ):
        inside.all_gather(np.zeros(2, np.float32), 0, ((0, 2),))

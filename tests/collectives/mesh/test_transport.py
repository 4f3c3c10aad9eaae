"""The mesh transport between two processes, over gloo."""

import multiprocessing
import socket
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest
from rank_pool import RankPool

from torch_xdist.collectives.errors import ArgumentError


@pytest.fixture
def address():
    """Where the coordination service of a test may listen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def every_collective(rank, size, address):
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from torch_xdist.collectives import inside
    from torch_xdist.collectives.mesh import transport as mesh
    from torch_xdist.collectives.messages import communicator

    mesh.join(rank, size, address)
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
    messages = communicator.all_gather("ranks", rank), _messages(rank)
    return results, messages


def _messages(rank):
    from torch_xdist.collectives.messages import communicator

    communicator.current().send(1 - rank, "hello", bytes([rank]))
    return communicator.current().receive(1 - rank, "hello")


def test_every_collective_in_one_program(address):
    with RankPool(2) as fresh:
        outcomes = fresh.run(2, every_collective, address, join=False, timeout_s=120)
    for rank, (found, messages) in enumerate(outcomes):
        assert messages == ([0, 1], (1 - rank, bytes([1 - rank])))
        assert [total.tolist() for total in found["sum"]] == [[[3.0, 3.0]], [[3, 3]]]
        assert found["mul"].tolist() == [[2.0, 2.0]]
        assert found["any"].tolist() == [[True, True]]
        assert found["gather"].tolist() == [[1.0, 1.0, 2.0, 2.0]]
        assert found["scatter"].tolist() == [[3.0, 3.0]]
        assert found["to_all"].tolist() == [[1.0, 1.0, 2.0, 2.0]]
        assert found["ring"].tolist() == [[float(rank)] * 2]
        assert np.isinf(found["root"].real).all()
        assert found["apart"].tolist() == [[rank + 1.0] * 2]


def alone(rank, size, address):
    from torch_xdist.collectives.errors import JoinError
    from torch_xdist.collectives.mesh import transport as mesh

    try:
        mesh.join(1, 2, address, timeout_s=1)
    except JoinError as error:
        return str(error)
    return None


def test_a_service_that_is_not_there_is_named(address):
    with RankPool(1) as fresh:
        message = fresh.run(1, alone, address, join=False)[0]
    assert f"rank 1 of 2 could not join the coordination service at {address}" in message


def test_groups_that_leave_ranks_out_are_refused():
    from torch_xdist.collectives import inside

    with (
        inside.program("mesh", 3),
        pytest.raises(ArgumentError, match=r"groups \[\[0, 2\]\] leave out some of the 3 ranks"),
    ):
        inside.all_gather(np.zeros(2, np.float32), 0, ((0, 2),))


def secrets(rank, size, address, given, job):
    from torch_xdist.collectives.errors import StrangerError
    from torch_xdist.collectives.mesh import transport as mesh
    from torch_xdist.collectives.messages import communicator

    mesh.join(rank, size, address, secret=given, job=job)
    assert communicator.exchange("a", bytes([rank])) == [b"\0", b"\1"]
    refused = ""
    if rank == 0:
        # As anybody can who reaches the service.
        client = distributed_client()
        client.key_value_set_bytes("xdist/rendezvous/b/0-1/1", b"cos\nsystem\n(S'true'\ntR.")
        try:
            refused = communicator.exchange("b", b"")
        except StrangerError as error:
            refused = str(error)
    return communicator.current().is_authenticated, refused


def distributed_client():
    from jax._src import distributed

    return distributed.global_state.client


@pytest.mark.parametrize("given", [b"given", b""])
def test_ranks_of_one_host_share_a_secret_also_if_the_launcher_gave_none(address, given):
    with RankPool(2) as fresh:
        found = fresh.run(2, secrets, address, given, uuid.uuid4().hex, join=False)
    assert [authenticated for authenticated, _ in found] == [True, True]
    assert "xdist/rendezvous/b/0-1/1: 23 bytes without the seal of this job" in found[0][1]


def test_ranks_of_several_hosts_without_a_secret_know_that_they_have_none(address):
    with RankPool(2) as fresh:
        found = fresh.run(2, secrets, address, b"", "", join=False)
    assert [authenticated for authenticated, _ in found] == [False, False]


SLOW_TO_END = """
import atexit, sys, time

from torch_xdist.collectives.mesh import transport as mesh

rank, address = int(sys.argv[1]), sys.argv[2]
if rank == 1:
    atexit.register(time.sleep, 8)  # It runs after the mesh is left, and before JAX cleans up.
mesh.join(rank, 2, address)
"""


def test_a_rank_that_is_slow_to_end_outlives_the_one_that_keeps_the_service(address):
    words = [sys.executable, "-c", SLOW_TO_END]
    ranks = [
        subprocess.Popen([*words, str(rank), address], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    started_s = time.monotonic()
    ended = [(rank.communicate(timeout=60)[1], rank.returncode) for rank in ranks]
    assert [code for _, code in ended] == [0, 0], ended
    assert time.monotonic() - started_s < 30


def ends(rank, size, address, which, how):
    """One rank ends; what the others hear where they wait for it."""
    import os
    import time

    from torch_xdist.collectives.errors import RankLostError
    from torch_xdist.collectives.mesh import transport as mesh
    from torch_xdist.collectives.messages import communicator

    # Somebody else serves, so that it outlives any rank.
    mesh.join(rank, size, address, serve=False, secret=b"secret")
    communicator.exchange("all are here")
    time.sleep(1.0)  # the connections are made in the background
    if rank == which:
        os._exit(0) if how == "exit" else os.kill(os.getpid(), 9)
    start_s = time.monotonic()
    try:
        communicator.exchange("next")
    except RankLostError as error:
        return str(error), time.monotonic() - start_s
    return None


def serves(connection, address):
    """The coordination service, as a launcher runs it, until it is told to end."""
    from jaxlib import _jax

    service = _jax.get_distributed_runtime_service(address, 3, recoverable=True)
    connection.recv()
    del service


@pytest.mark.parametrize(("which", "how"), [(2, "kill"), (2, "exit"), (0, "exit")])
def test_a_rank_that_ended_is_named_within_seconds_wherever_it_was(address, which, how):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    service = context.Process(target=serves, args=(theirs, address), daemon=True)
    service.start()
    try:
        with RankPool(3) as fresh:
            outcomes = fresh.outcomes(3, ends, address, which, how, join=False)
    finally:
        service.kill()
        service.join()
        ours.close()
    assert outcomes.pop(which) == (False, f"died with exit code {-9 if how == 'kill' else 0}")
    for good, found in outcomes:
        assert good, found
        told, waited_s = found
        assert f"rendezvous 'next': rank {which} has ended, while rank" in told
        assert waited_s < 5


def hears_strangers(rank, size, address):
    """Strangers connect where the ranks hold their connections; whether rank 1 still counts."""
    import socket
    import time

    from torch_xdist.collectives.mesh import transport as mesh
    from torch_xdist.collectives.messages import communicator

    mesh.join(rank, size, address, secret=b"secret")
    communicator.exchange("all are here")
    time.sleep(1.0)
    agreement, _ = mesh.joined()
    if rank == 1:
        where = agreement.store.get("xdist/liveness", 5).decode()
        for data in (b"", (1).to_bytes(4, "big"), bytes(16) + bytes(32) + (1).to_bytes(4, "big")):
            host, _, port = where.rpartition(":")
            with socket.create_connection((host, int(port)), 5) as sock:
                sock.sendall(data)
    communicator.exchange("strangers are gone")
    time.sleep(1.0)
    return agreement.has_ended(1 - rank)


def test_a_stranger_cannot_end_a_rank_in_its_name(address):
    with RankPool(2) as fresh:
        assert fresh.run(2, hears_strangers, address, join=False) == [False, False]

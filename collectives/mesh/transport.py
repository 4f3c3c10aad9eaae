"""The mesh transport: JAX's distributed runtime over all ranks, and the mesh of their devices."""

import atexit
import contextlib
import functools
import os
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import distributed, xla_bridge
from jax.sharding import Mesh
from jaxlib import _jax

from torch_xdist.collectives.errors import JoinError
from torch_xdist.collectives.launches import Launches
from torch_xdist.collectives.mesh.agreement import Agreement
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.mesh.liveness import Liveness, own_address
from torch_xdist.collectives.mesh.lowering import AXIS
from torch_xdist.collectives.mesh.store import StoreCommunicator
from torch_xdist.collectives.messages import communicator
from torch_xdist.collectives.messages.peers import START_S, Peers, address_of
from torch_xdist.collectives.messages.server import Server

_EXIT_MS = 10_000
_SECRET_BYTES = 32
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


class Joined(NamedTuple):
    """The agreement on programs, and the order in which this rank launches them."""

    agreement: Agreement
    launches: Launches


_joined: list[Joined] = []


def join(
    rank: int,
    world_size: int,
    coordinator: str,
    *,
    serve: bool | None = None,
    secret: bytes = b"",
    job: str = "",
    timeout_s: float = START_S,
) -> None:
    """Start JAX's distributed runtime as `rank`; returns when all ranks are there.

    Call it before JAX makes its first device. On CPUs XLA's collectives go through gloo. Unlike
    `jax.distributed.initialize` it leaves no shutdown barrier behind: a rank that fails ends at
    once, with its own exit code.

    Args:
        coordinator: "host:port" of the coordination service.
        serve: start the service here; None: on rank 0. False everywhere where somebody else does.
        secret: the job's, see `system.rank.Rank`; b"": none.
        job: where all ranks are on one host, a name that no other job there has; they then share a
            secret of their own, if the launcher gave them none.

    Raises:
        JoinError: the service did not answer, or a rank did not come.
    """
    state = distributed.global_state
    if state.client is not None:
        return
    if job and not secret:
        secret = _secret_of_the_host(job, rank, timeout_s)
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        if serve or (serve is None and rank == 0):
            state.service = _serve(coordinator, world_size)
        client = _client(coordinator, rank, timeout_s)
        client.connect()
    except RuntimeError as error:
        raise JoinError(
            f"start: rank {rank} of {world_size} could not join the coordination service at "
            f"{coordinator} within {timeout_s:.0f} s ({error}); all ranks must start, and reach "
            "that address"
        ) from error
    state.client, state.coordinator_address = client, coordinator
    state.process_id, state.num_processes = rank, world_size
    make_client = functools.partial(_cpu_client, coordinator)
    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
    _connect(rank, world_size, KeyValueStore(client, secret), coordinator, secret)
    atexit.register(_leave)


def _cpu_client(coordinator: str) -> Any:
    """JAX's client of the CPU, with gloo at this rank's address on the way to the others.

    JAX lets gloo look up the host's name, which often stands for an address of loopback.
    """
    client, address = distributed.global_state.client, None
    with contextlib.suppress(OSError):  # IPv6 alone: the name must do
        address = own_address(coordinator)
    collectives = _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=address)
    return xla_bridge.make_cpu_client(collectives)


def _client(coordinator: str, rank: int, timeout_s: float) -> Any:
    return _jax.get_distributed_runtime_client(
        coordinator,
        rank,
        init_timeout=int(timeout_s),
        use_compression=True,
        shutdown_on_destruction=False,
        # Where the service is gone JAX ends the process by a signal, whatever this is; by default
        # it prints its own frames, too.
        missed_heartbeat_callback=_ignore,
    )


def _connect(
    rank: int, world_size: int, store: KeyValueStore, coordinator: str, secret: bytes
) -> None:
    has_ended = Liveness(rank, store, coordinator, secret).has_ended if secret else _never
    communicator.use(StoreCommunicator(rank, world_size, store, has_ended))
    _joined[:] = [Joined(Agreement(rank, world_size, store, has_ended), Launches())]


def _secret_of_the_host(job: str, rank: int, timeout_s: float) -> bytes:
    """A secret that rank 0 makes, and hands to processes of the same user on the same host."""
    if rank == 0:
        made = os.urandom(_SECRET_BYTES)
        handlers = {"secret": lambda request: request.answer(None, made)}
        Server(address_of(job, rank, b""), b"", handlers)
        return made
    question = {"kind": "secret"}
    return Peers(job, rank, b"").ask(0, "its start", question, start_s=timeout_s).blob


def joined() -> Joined:
    """What this rank asks before it runs a program; `join` came first."""
    return _joined[0]


def _never(rank: int) -> bool:
    return False


def _ignore(status: object) -> None:
    pass


def _leave() -> None:
    """End in peace with the others: who keeps the service goes when nobody listens to it any more.

    A rank that still did would be ended by a signal, though it had finished.
    """
    state = distributed.global_state
    if state.client is None:
        return
    deadline_s = time.monotonic() + _EXIT_MS / 1000
    with contextlib.suppress(RuntimeError):
        state.client.wait_at_barrier("xdist/exit", _EXIT_MS)
    with contextlib.suppress(RuntimeError):
        if state.service is None:
            state.client.shutdown()
            state.client.key_value_set(f"xdist/left/{state.process_id}", "")
            return
        for rank in set(range(state.num_processes)) - {state.process_id}:
            left_ms = max(1, round((deadline_s - time.monotonic()) * 1000))
            state.client.blocking_key_value_get(f"xdist/left/{rank}", left_ms)


def _serve(coordinator: str, world_size: int) -> object:
    host, _, port = coordinator.rpartition(":")
    # Ranks of one host need not open it to the network.
    where = "127.0.0.1" if host in _LOOPBACK else "[::]"
    return _jax.get_distributed_runtime_service(f"{where}:{port}", world_size, recoverable=True)


def devices() -> Mesh:
    """The mesh with the first device of every rank, in the order of ranks; axis "ranks"."""
    firsts: dict[int, jax.Device] = {}
    for device in jax.devices():
        firsts.setdefault(device.process_index, device)
    return Mesh(np.array([firsts[rank] for rank in sorted(firsts)]), (AXIS,))

"""The mesh transport: JAX's distributed runtime over all ranks, and the mesh of their devices."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import distributed, xla_bridge
from jax.sharding import Mesh
from jaxlib import _jax

from torch_xdist.collectives.launches import Launches
from torch_xdist.collectives.mesh import coordination, liveness
from torch_xdist.collectives.mesh.agreement import Agreement
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.mesh.liveness import own_address
from torch_xdist.collectives.mesh.lowering import AXIS
from torch_xdist.collectives.mesh.store import StoreCommunicator
from torch_xdist.collectives.messages import communicator
from torch_xdist.collectives.messages.peers import START_S


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

    Call it before JAX makes its first device. On CPUs XLA's collectives go through gloo.

    Args: as of `coordination.join`.

    Raises:
        JoinError: the service did not answer, or a rank did not come.
    """
    state = distributed.global_state
    if state.client is not None:
        return
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    made = coordination.join(
        rank, world_size, coordinator, serve=serve, secret=secret, job=job, timeout_s=timeout_s
    )
    state.client, state.service, state.coordinator_address = made.client, made.service, coordinator
    state.process_id, state.num_processes = rank, world_size
    make_client = functools.partial(_cpu_client, coordinator)
    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
    store = KeyValueStore(made.client, made.secret)
    has_ended = liveness.knowledge(rank, store, coordinator, made.secret)
    communicator.use(StoreCommunicator(rank, world_size, store, has_ended))
    _joined[:] = [Joined(Agreement(rank, world_size, store, has_ended), Launches())]


def _cpu_client(coordinator: str) -> Any:
    """JAX's client of the CPU, with gloo at this rank's address on the way to the others.

    JAX lets gloo look up the host's name, which often stands for an address of loopback.
    """
    client, address = distributed.global_state.client, None
    with contextlib.suppress(OSError):  # IPv6 alone: the name must do
        address = own_address(coordinator)
    collectives = _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=address)
    return xla_bridge.make_cpu_client(collectives)


def joined() -> Joined:
    """What this rank asks before it runs a program; `join` came first."""
    return _joined[0]


def devices() -> Mesh:
    """The mesh with the first device of every rank, in the order of ranks; axis "ranks"."""
    firsts: dict[int, jax.Device] = {}
    for device in jax.devices():
        firsts.setdefault(device.process_index, device)
    return over([firsts[rank] for rank in sorted(firsts)])


def over(firsts: Sequence[jax.Device]) -> Mesh:
    """The mesh with these devices, one of each rank, in the order of ranks."""
    return Mesh(np.array(firsts), (AXIS,))

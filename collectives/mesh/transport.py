"""The mesh transport: JAX's distributed runtime over all ranks, and the mesh of their devices."""

import atexit
import contextlib

import jax
import numpy as np
from jax._src import distributed
from jax.sharding import Mesh
from jaxlib import _jax

from torch_xdist.collectives.errors import JoinError
from torch_xdist.collectives.mesh.agreement import Agreement
from torch_xdist.collectives.mesh.lowering import AXIS
from torch_xdist.collectives.mesh.store import StoreCommunicator
from torch_xdist.collectives.messages import communicator

_EXIT_MS = 10_000
_agreements: list[Agreement] = []


def join(
    rank: int,
    world_size: int,
    coordinator: str,
    *,
    serve: bool | None = None,
    timeout_s: float = 300.0,
) -> None:
    """Start JAX's distributed runtime as `rank`; returns when all ranks are there.

    Call it before JAX makes its first device. On CPUs XLA's collectives go through gloo. Unlike
    `jax.distributed.initialize` it leaves no shutdown barrier behind: a rank that fails ends at
    once, with its own exit code.

    Args:
        coordinator: "host:port" of the coordination service.
        serve: start the service here; None: on rank 0. False everywhere where somebody else does.

    Raises:
        JoinError: the service did not answer, or a rank did not come.
    """
    state = distributed.global_state
    if state.client is not None:
        return
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        if serve or (serve is None and rank == 0):
            state.service = _serve(coordinator, world_size)
        client = _jax.get_distributed_runtime_client(
            coordinator,
            rank,
            init_timeout=int(timeout_s),
            use_compression=True,
            shutdown_on_destruction=False,
            # Its default ends the process by a signal; the collective that fails says more.
            missed_heartbeat_callback=_ignore,
        )
        client.connect()
    except RuntimeError as error:
        raise JoinError(
            f"start: rank {rank} of {world_size} could not join the coordination service at "
            f"{coordinator} within {timeout_s:.0f} s ({error}); all ranks must start, and reach "
            "that address"
        ) from error
    state.client, state.coordinator_address = client, coordinator
    state.process_id, state.num_processes = rank, world_size
    communicator.use(StoreCommunicator(rank, world_size, client))
    atexit.register(_leave)
    _agreements[:] = [Agreement(rank, world_size, client)]


def agreement() -> Agreement:
    """This rank's part in the agreement on programs; `join` came first."""
    return _agreements[0]


def _ignore(status: object) -> None:
    pass


def _leave() -> None:
    """Who may keep the service waits a moment for the others to end, so that they end in peace."""
    state = distributed.global_state
    if state.client is not None:
        with contextlib.suppress(RuntimeError):
            state.client.wait_at_barrier("xdist/exit", _EXIT_MS)


def _serve(coordinator: str, world_size: int) -> object:
    port = coordinator.rpartition(":")[2]
    return _jax.get_distributed_runtime_service(f"[::]:{port}", world_size, recoverable=True)


def devices() -> Mesh:
    """The mesh with the first device of every rank, in the order of ranks; axis "ranks"."""
    firsts: dict[int, jax.Device] = {}
    for device in jax.devices():
        firsts.setdefault(device.process_index, device)
    return Mesh(np.array([firsts[rank] for rank in sorted(firsts)]), (AXIS,))

"""The way to JAX's coordination service, where ranks that share no memory meet for the first time.

Unlike `jax.distributed.initialize` it leaves no shutdown barrier behind: a rank that fails ends at
once, with its own exit code. Called by both transports over several hosts.
"""

import atexit
import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

from jaxlib import _jax

from torch_xdist.collectives.errors import JoinError
from torch_xdist.collectives.messages.peers import START_S, Peers, address_of
from torch_xdist.collectives.messages.server import Server

_EXIT_MS = 10_000
_SECRET_BYTES = 32
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


@dataclass(frozen=True, slots=True)
class Coordination:
    """One rank's connection.

    Attributes:
        client: of the service, through which a `KeyValueStore` speaks.
        service: where this process runs it; None where it does not.
        secret: by which the ranks know each other; b"": they have none.
    """

    rank: int
    world_size: int
    address: str
    client: Any
    service: Any
    secret: bytes


def join(
    rank: int,
    world_size: int,
    coordinator: str,
    *,
    serve: bool | None = None,
    secret: bytes = b"",
    job: str = "",
    timeout_s: float = START_S,
) -> Coordination:
    """Connect to the service; returns when all ranks have. The end of the process is looked after.

    Args:
        coordinator: "host:port" of the coordination service.
        serve: start the service here; None: on rank 0. False everywhere where somebody else does.
        secret: the job's, see `system.rank.Rank`; b"": none.
        job: where all ranks are on one host, a name that no other job there has; they then share a
            secret of their own, if the launcher gave them none.

    Raises:
        JoinError: the service did not answer, or a rank did not come.
    """
    if job and not secret:
        secret = _secret_of_the_host(job, rank, timeout_s)
    service = None
    try:
        if serve or (serve is None and rank == 0):
            service = _serve(coordinator, world_size)
        client = _client(coordinator, rank, timeout_s)
        client.connect()
    except RuntimeError as error:
        raise JoinError(
            f"start: rank {rank} of {world_size} could not join the coordination service at "
            f"{coordinator} within {timeout_s:.0f} s ({error}); all ranks must start, and reach "
            "that address"
        ) from error
    made = Coordination(rank, world_size, coordinator, client, service, secret)
    atexit.register(_leave, made)
    return made


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


def _secret_of_the_host(job: str, rank: int, timeout_s: float) -> bytes:
    """A secret that rank 0 makes, and hands to processes of the same user on the same host."""
    if rank == 0:
        made = os.urandom(_SECRET_BYTES)
        handlers = {"secret": lambda request: request.answer(None, made)}
        Server(address_of(job, rank, b""), b"", handlers)
        return made
    question = {"kind": "secret"}
    return Peers(job, rank, b"").ask(0, "its start", question, start_s=timeout_s).blob


def _ignore(status: object) -> None:
    pass


def _leave(ours: Coordination) -> None:
    """End in peace with the others: who keeps the service goes when nobody listens to it any more.

    A rank that still did would be ended by a signal, though it had finished.
    """
    deadline_s = time.monotonic() + _EXIT_MS / 1000
    with contextlib.suppress(RuntimeError):
        ours.client.wait_at_barrier("xdist/exit", _EXIT_MS)
    with contextlib.suppress(RuntimeError):
        if ours.service is None:
            ours.client.shutdown()
            ours.client.key_value_set(f"xdist/left/{ours.rank}", "")
            return
        for rank in set(range(ours.world_size)) - {ours.rank}:
            left_ms = max(1, round((deadline_s - time.monotonic()) * 1000))
            ours.client.blocking_key_value_get(f"xdist/left/{rank}", left_ms)
        # Else its thread, which listens for errors, hears the end of the service as one.
        ours.client.shutdown()


def _serve(coordinator: str, world_size: int) -> object:
    host, _, port = coordinator.rpartition(":")
    # Ranks of one host need not open it to the network.
    where = "127.0.0.1" if host in _LOOPBACK else "[::]"
    return _jax.get_distributed_runtime_service(f"{where}:{port}", world_size, recoverable=True)

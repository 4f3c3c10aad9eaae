"""How a process becomes a rank of a job whose CPU ranks are on several hosts."""

import hmac
import os
import socket
import threading
from pathlib import Path

import jax.numpy as jnp

from torch_xdist.collectives.errors import CollectiveError, JoinError
from torch_xdist.collectives.hosts.endpoint import Host, WideEndpoint, packed, unpacked
from torch_xdist.collectives.hosts.wide_statuses import WideStatuses
from torch_xdist.collectives.hosts.wires import Door, Hello
from torch_xdist.collectives.mesh import coordination, liveness
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.mesh.store import StoreCommunicator
from torch_xdist.collectives.messages import communicator
from torch_xdist.collectives.messages.peers import START_S, Peers
from torch_xdist.collectives.shared_memory import statuses, transport
from torch_xdist.collectives.shared_memory.array_messages import (
    ArrayMessage,
    ArrayQueue,
    PointToPoint,
)

_PLACE, _TABLE, _TOKEN = "xdist/hosts", "xdist/all hosts", "xdist/wires"
_TOKEN_BYTES = 32


def join(
    rank: int,
    world_size: int,
    coordinator: str,
    job: str,
    *,
    host_index: int = 0,
    serve: bool | None = None,
    secret: bytes = b"",
    timeout_s: float = START_S,
) -> WideEndpoint:
    """Become `rank` of a job over several hosts; returns when all ranks are there.

    Args:
        job: the same on all ranks of a host, and another one for each job and attempt there.
        host_index: the launcher's number of this host. Ranks share memory where it is the same,
            and they are on one machine, in one network namespace.
        coordinator, serve, secret: as of `coordination.join`.

    Raises:
        JoinError: the coordination service did not answer, or a rank did not come.
    """
    made = coordination.join(
        rank, world_size, coordinator, serve=serve, secret=secret, timeout_s=timeout_s
    )
    store = KeyValueStore(made.client, secret)
    key = _key(rank, store, secret, timeout_s)
    ends: list[WideEndpoint] = []
    is_ready = threading.Event()

    def welcome(sock: socket.socket, hello: Hello) -> None:
        is_ready.wait()
        ends[0].welcome(sock, hello)

    door = Door(liveness.own_address(coordinator), key, welcome)
    store.put(f"{_PLACE}/{rank}", packed([Host(_host_name(host_index), door.where)]))
    hosts = _all_hosts(rank, world_size, store, timeout_s)
    ends.append(_endpoint(rank, hosts, job, key, store, timeout_s))
    is_ready.set()
    has_ended = liveness.knowledge(rank, store, coordinator, secret)
    communicator.use(StoreCommunicator(rank, world_size, store, has_ended))
    transport.use(ends[0])
    return ends[0]


def _endpoint(
    rank: int, hosts: list[Host], job: str, key: bytes, store: KeyValueStore, timeout_s: float
) -> WideEndpoint:
    peers = Peers(job, rank, key)
    memory = transport.GroupMemory(rank, peers, timeout_s)
    transport.serve(job, rank, key, {"memory": memory.answer})
    here = tuple(one for one, host in enumerate(hosts) if host.name == hosts[rank].name)
    ends: list[WideEndpoint] = []
    shared = WideStatuses(
        memory.map("statuses", here, statuses.size_bytes(len(hosts))),
        rank,
        set(here).__contains__,
        store,
        lambda ranks: ends[0].came_to(ranks),
    )
    peers.has_started = shared.has_started
    ends.append(
        WideEndpoint(
            hosts,
            key,
            os.getpid(),
            rank,
            len(hosts),
            memory.map,
            shared,
            PointToPoint(rank, _refuse, ArrayQueue()),
            has_ended=peers.has_ended,
            spin_s=transport.spin_s(len(here)),
            to_device=jnp.asarray,
        )
    )
    return ends[0]


def _refuse(message: ArrayMessage) -> None:
    raise CollectiveError(
        "send: a message between hosts goes through the channel, between programs; please report"
    )


def _host_name(host_index: int) -> str:
    """What is the same for the processes that can share memory with this one, and for no others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network = os.stat("/proc/self/ns/net").st_ino  # to which abstract sockets belong
    return f"{host_index}/{boot}/{network}/{os.geteuid()}"


def _key(rank: int, store: KeyValueStore, secret: bytes, timeout_s: float) -> bytes:
    """By which the ranks of this job know each other, and no others that have its secret.

    Where there is no secret, whoever reaches the service can read it.
    """
    if rank == 0:
        store.put(_TOKEN, os.urandom(_TOKEN_BYTES))
    token = _found(_TOKEN, "the token of the wires", store, timeout_s)
    return hmac.digest(secret, token, "sha256") if secret else token


def _all_hosts(rank: int, world_size: int, store: KeyValueStore, timeout_s: float) -> list[Host]:
    # One asks for each, and the others for all at once: the service answers 2 n times, not n * n.
    if rank == 0:
        hosts = [_host_of(one, store, timeout_s) for one in range(world_size)]
        store.put(_TABLE, packed(hosts))
        return hosts
    return unpacked(_found(_TABLE, "where the ranks are", store, timeout_s))


def _host_of(rank: int, store: KeyValueStore, timeout_s: float) -> Host:
    told = _found(f"{_PLACE}/{rank}", f"the host of rank {rank}", store, timeout_s)
    return unpacked(told)[0]


def _found(place: str, what: str, store: KeyValueStore, timeout_s: float) -> bytes:
    found = store.get(place, timeout_s)
    if found is None:
        raise JoinError(
            f"start: nobody told {what} within {timeout_s:.0f} s; all ranks must start with the "
            "same XDIST_TRANSPORT; look at their output"
        )
    return found

"""Which rank this process is, of how many, and how it joins the others.

In SPMD mode the processes are one rank together: one device stands for those of all of them.

The facts come from the environment every launcher sets (RANK, WORLD_SIZE, ...). Joining happens
at the first use of a device, never at import.
"""

import os
import threading
from collections.abc import Callable

from torch_xdist import metrics, platforms, settings
from torch_xdist.errors import WorldError
from torch_xdist.system import rank as ranks
from torch_xdist.system.rank import Rank

_current: Rank | None = None
_finders: list[Callable[[], object]] = []
_is_spmd = False
# Where one process drives several devices, each by a thread of its own, each thread is a rank.
_thread = threading.local()


def be_replica(facts: Rank | None) -> None:
    """Give this thread facts of its own; None: those of the process again."""
    _thread.world = facts


def replica() -> Rank | None:
    """The facts that this thread has of its own; None where it has none."""
    return getattr(_thread, "world", None)


def current() -> Rank:
    """The facts of this thread where it has some, else of this process."""
    return replica() or of_process()


def of_process() -> Rank:
    """The facts of this process, whatever its threads are; read once."""
    global _current, _is_spmd
    if _current is None:
        _is_spmd = _is_spmd or settings.asks_for_spmd()
        for find in _finders:
            find()
        _current = ranks.from_environ(os.environ)
    return _current


def find_with(find: Callable[[], object]) -> None:
    """Call this before the environment is read for the first time: it may complete the variables.

    So importing the launcher changes no environment and asks no server; the first use of the
    device does.
    """
    _finders.append(find)


def rank() -> int:
    """0 .. world_size - 1."""
    here = current()
    return 0 if _is_spmd else here.rank


def world_size() -> int:
    """How many ranks the job has."""
    here = current()
    return 1 if _is_spmd else here.world_size


def process_index() -> int:
    """The number of this process among those of the job; a rank's is its rank."""
    return current().rank


def process_count() -> int:
    """How many processes the job has; as many as ranks, but for SPMD mode."""
    return current().world_size


def shares_device() -> bool:
    """Whether this process is one of several that are one rank together."""
    return process_count() > 1 and _is_spmd


def be_one_rank() -> None:
    """From now on the processes of the job are one rank together."""
    global _is_spmd
    _is_spmd = True


def transport() -> str:
    """How collectives travel.

    "host" (shared memory of one host), "hosts" (that, and TCP between hosts) or "mesh" (XLA's own).
    """
    if _is_spmd:
        return "mesh"
    chosen = settings.current().transport
    if chosen:
        return "mesh" if chosen == "gloo" else chosen
    here = current()
    one_host = here.local_world_size == here.world_size
    if not platforms.of(settings.current().platform or "cpu").shares_memory:
        return "mesh"
    return "host" if one_host else "hosts"


def join() -> None:
    """Meet the other ranks: share memory with them, or start JAX's distributed runtime.

    Raises:
        WorldError: XDIST_TRANSPORT asks ranks of several hosts to share memory.
    """
    here = current()
    if here.world_size == 1:
        return
    if transport() == "host" and here.local_world_size < here.world_size:
        raise WorldError(
            f"XDIST_TRANSPORT=host: {here.world_size} ranks, of which {here.local_world_size} are "
            "on this host, share no memory; unset it, so that they exchange over the network"
        )
    # Late, because reading the facts of a rank must not load JAX.
    from torch_xdist.collectives.hosts import transport as hosts
    from torch_xdist.collectives.mesh import transport as mesh
    from torch_xdist.collectives.shared_memory import transport as shared_memory

    if transport() == "host":
        shared_memory.join(
            here.rank,
            here.world_size,
            here.meeting,
            secret=here.secret,
            on_unreadable=lambda: metrics.count("CollectiveCopiedTwice"),
        )
    elif transport() == "hosts":
        hosts.join(
            here.rank,
            here.world_size,
            here.coordinator_address,
            here.meeting,
            host_index=here.host_index,
            serve=here.serves_coordinator,
            secret=here.secret,
        )
    else:
        mesh.join(
            here.rank,
            here.world_size,
            here.coordinator_address,
            serve=here.serves_coordinator,
            secret=here.secret,
            job=here.meeting if here.local_world_size == here.world_size else "",
        )


def become(rank: int, size: int) -> None:
    """Make this process a rank, where no launcher said so: `init_process_group(rank=, ...)`."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.setdefault("LOCAL_RANK", str(rank))
    forget()


def forget() -> None:
    """Read the environment again; for a process that becomes another rank."""
    global _current
    _current = None


os.register_at_fork(after_in_child=forget)

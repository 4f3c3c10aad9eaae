"""Which rank this process is, of how many, and how it joins the others.

The facts come from the environment every launcher sets (RANK, WORLD_SIZE, ...). Joining happens
at the first use of a device, never at import.
"""

import os
import threading
from dataclasses import dataclass

from torch_xdist import settings


@dataclass(frozen=True, slots=True)
class World:
    """One rank's place. A process outside any launcher is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    host_index: int = 0
    job: str = ""
    attempt: int = 0
    coordinator: str = ""
    serves_coordinator: bool = False
    is_rank: bool = False


_current: World | None = None
# Where one process drives several devices, each by a thread of its own, each thread is a rank.
_thread = threading.local()


def be_replica(facts: World | None) -> None:
    """Give this thread facts of its own; None: those of the process again."""
    _thread.world = facts


def current() -> World:
    """The facts of this thread where it has some, else of this process, read once."""
    global _current
    own: World | None = getattr(_thread, "world", None)
    if own is not None:
        return own
    if _current is None:
        _current = _from_environment()
    return _current


def _from_environment() -> World:
    env = os.environ
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return World()
    size = int(env["WORLD_SIZE"])
    job = env.get("XLA_RUN_JOB_ID") or env.get("TORCHELASTIC_RUN_ID") or ""
    master = env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", 12355))
    coordinator = env.get("XLA_RUN_COORDINATOR", "")
    return World(
        rank=int(env["RANK"]),
        world_size=size,
        local_rank=int(env.get("LOCAL_RANK", 0)),
        local_world_size=int(env.get("LOCAL_WORLD_SIZE", size)),
        host_index=int(env.get("GROUP_RANK", 0)),
        # Several jobs may have the same id (torchrun's default is "none"), but not the same port.
        job=f"{job}/{master[0]}:{master[1]}",
        # Other launchers use the master port for themselves; the one above it is as good as any.
        coordinator=coordinator or f"{master[0]}:{master[1] + 1}",
        serves_coordinator=not coordinator and env["RANK"] == "0",
        attempt=int(env.get("XLA_RUN_ATTEMPT", env.get("TORCHELASTIC_RESTART_COUNT", 0))),
        is_rank=True,
    )


def rank() -> int:
    """0 .. world_size - 1."""
    return current().rank


def world_size() -> int:
    """How many ranks the job has."""
    return current().world_size


def transport() -> str:
    """How collectives travel: "host" (shared memory of one host) or "mesh" (XLA's own)."""
    chosen = settings.current().transport
    if chosen:
        return "mesh" if chosen == "gloo" else chosen
    here = current()
    one_host = here.local_world_size == here.world_size
    on_cpu = (settings.current().platform or "CPU").upper() == "CPU"
    return "host" if one_host and on_cpu else "mesh"


def join() -> None:
    """Meet the other ranks: share memory with them, or start JAX's distributed runtime."""
    here = current()
    if here.world_size == 1:
        return
    # Late, because reading the facts of a rank must not load JAX.
    from torch_xdist.collectives.mesh import transport as mesh
    from torch_xdist.collectives.shared_memory import transport as shared_memory

    if transport() == "host":
        shared_memory.join(here.rank, here.world_size, f"{here.job}/{here.attempt}")
    else:
        mesh.join(here.rank, here.world_size, here.coordinator, serve=here.serves_coordinator)


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

"""Which other launcher started this process, and what it says about the job.

One class per launcher: `world(environ)` is None where the launcher is not it. `detect` asks them
in order. A world of ranks means that this process IS a rank: nothing must be multiplied. A world
of hosts (a TPU slice, a JobSet) means one process per host: each starts its host's ranks.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from torch_xdist.launcher import devices
from torch_xdist.launcher.errors import SettingError, UsageError
from torch_xdist.launcher.settings import (
    Environ,
    asked_device,
    environment,
    integer,
    publish,
    rank_facts,
    text,
)

# Ports from here up are not given to clients by default on Linux (32768 to 60999 are).
_FIRST_PORT = 61440
_PORTS = 4096
_DEFAULT_PORT = 8547


@dataclass(frozen=True, slots=True)
class World:
    """What another launcher says. With `of_hosts`, rank counts are those of hosts.

    `master_port` is 0 where the launcher names none; the one given is in use by torchrun's own
    store, so our services must take another.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int = 0
    local_world_size: int = 1
    host_index: int = 0
    hosts: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    of_hosts: bool = False


class Launcher(Protocol):
    """One launcher: its name, and how its variables are read."""

    name: str

    def world(self, environ: Environ) -> World | None: ...


class Torchrun:
    """torchrun, and all that set the same variables: RANK, LOCAL_RANK, WORLD_SIZE."""

    name = "torchrun"

    def world(self, environ: Environ) -> World | None:
        if not all(text(environ, name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")):
            return None
        size = integer(environ, "WORLD_SIZE", least=1) or 1
        local_size = integer(environ, "LOCAL_WORLD_SIZE", least=1) or size
        name = self.name if text(environ, "TORCHELASTIC_RUN_ID") else "the environment (RANK)"
        return World(
            name,
            integer(environ, "RANK") or 0,
            size,
            integer(environ, "LOCAL_RANK") or 0,
            local_size,
            integer(environ, "GROUP_RANK") or 0,
            integer(environ, "GROUP_WORLD_SIZE", least=1) or max(1, size // local_size),
            text(environ, "MASTER_ADDR", "127.0.0.1"),
            _port(environ),
        )


class Slurm:
    """srun with more than one task. A batch script's own shell is no task of a step."""

    name = "Slurm (srun)"

    def world(self, environ: Environ) -> World | None:
        step = text(environ, "SLURM_STEP_ID") or text(environ, "SLURM_STEPID")
        size = integer(environ, "SLURM_STEP_NUM_TASKS", least=1)
        rank = integer(environ, "SLURM_PROCID")
        if not step or not size or size == 1 or rank is None:
            return None
        node = integer(environ, "SLURM_NODEID") or 0
        per_node = expand_tasks(text(environ, "SLURM_STEP_TASKS_PER_NODE", str(size)))
        nodes = expand_nodes(text(environ, "SLURM_STEP_NODELIST", "127.0.0.1"))
        job = integer(environ, "SLURM_JOB_ID") or integer(environ, "SLURM_JOBID") or 0
        number = int(step) if step.isdigit() else 0
        return World(
            self.name,
            rank,
            size,
            integer(environ, "SLURM_LOCALID") or 0,
            per_node[node] if node < len(per_node) else 1,
            node,
            len(nodes),
            text(environ, "MASTER_ADDR") or ("127.0.0.1" if len(nodes) == 1 else nodes[0]),
            _port(environ) or _FIRST_PORT + (job * 31 + number) % _PORTS,
        )


class OpenMpi:
    """mpirun of Open MPI with more than one process."""

    name = "Open MPI (mpirun)"

    def world(self, environ: Environ) -> World | None:
        size = integer(environ, "OMPI_COMM_WORLD_SIZE", least=1)
        rank = integer(environ, "OMPI_COMM_WORLD_RANK")
        if not size or size == 1 or rank is None:
            return None
        local_size = integer(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", least=1) or size
        hosts = integer(environ, "OMPI_MCA_orte_num_nodes", least=1) or max(1, size // local_size)
        return World(
            self.name,
            rank,
            size,
            integer(environ, "OMPI_COMM_WORLD_LOCAL_RANK") or 0,
            local_size,
            # mpirun fills host by host unless told otherwise; no variable names the host.
            min(rank // local_size, hosts - 1),
            hosts,
            text(environ, "MASTER_ADDR") or ("127.0.0.1" if hosts == 1 else self._head(environ)),
            _port(environ) or _FIRST_PORT + self._job(environ) % _PORTS,
        )

    def _head(self, environ: Environ) -> str:
        """mpirun's own address: it starts rank 0 on the first host, which is usually its own."""
        match = re.search(r"tcp://([0-9.]+)", text(environ, "OMPI_MCA_orte_hnp_uri"))
        if match is None:
            raise SettingError(
                "Open MPI over several hosts: OMPI_MCA_orte_hnp_uri names no address; "
                "set MASTER_ADDR to the host of rank 0 (mpirun -x MASTER_ADDR=...)"
            )
        return match[1]

    def _job(self, environ: Environ) -> int:
        name = text(environ, "PMIX_NAMESPACE") or text(environ, "OMPI_MCA_orte_hnp_uri")
        digits = re.sub(r"\D", "", name.split(";")[0])
        return int(digits) // 65536 if digits else 0


class JobSet:
    """An indexed Kubernetes job, one pod per host, where the number of pods is told as well."""

    name = "a JobSet"
    _COUNTS = ("XLA_RUN_HOSTS", "NUM_PROCESSES", "JAX_NUM_PROCESSES", "WORLD_SIZE")

    def world(self, environ: Environ) -> World | None:
        index = integer(environ, "JOB_COMPLETION_INDEX")
        counts = [count for name in self._COUNTS if (count := integer(environ, name, least=1))]
        if index is None or not counts or counts[0] == 1:
            return None
        address = text(environ, "MASTER_ADDR") or text(environ, "JAX_COORDINATOR_ADDRESS")
        if not address:
            raise SettingError(
                f"JobSet with {counts[0]} pods: no MASTER_ADDR; "
                "set it to the host name of the pod with index 0"
            )
        return _of_hosts(self.name, index, counts[0], address.split(":")[0], _port(environ))


class TpuSlice:
    """A TPU slice with several hosts: TPU_WORKER_ID and TPU_WORKER_HOSTNAMES; not on its CPUs."""

    name = "a TPU slice"

    def world(self, environ: Environ) -> World | None:
        if asked_device(environ) == "CPU":
            return None
        chips = text(environ, "TPU_VISIBLE_CHIPS")
        tasks = [name for name in text(environ, "TPU_PROCESS_ADDRESSES").split(",") if name]
        task = integer(environ, "CLOUD_TPU_TASK_ID")
        if chips and tasks and task is not None:
            return self._rank(task, tasks)
        hosts = [name for name in text(environ, "TPU_WORKER_HOSTNAMES").split(",") if name.strip()]
        index = integer(environ, "TPU_WORKER_ID")
        if len(hosts) < 2 or index is None:
            return None
        address = text(environ, "MASTER_ADDR") or hosts[0].strip()
        return _of_hosts(self.name, index, len(hosts), address, _port(environ))

    def _rank(self, task: int, tasks: list[str]) -> World | None:
        """A process that was given its chip already, by whoever set the variables of libtpu."""
        if len(tasks) == 1:
            return None
        names = [name.rsplit(":", 1)[0] for name in tasks]
        hosts = list(dict.fromkeys(names))
        mine = names[task] if task < len(names) else names[0]
        return World(
            self.name + " (TPU_PROCESS_ADDRESSES)",
            task,
            len(tasks),
            names[:task].count(mine),
            names.count(mine),
            hosts.index(mine),
            len(hosts),
            hosts[0],
            _DEFAULT_PORT,
        )


LAUNCHERS: tuple[Launcher, ...] = (Torchrun(), Slurm(), OpenMpi(), TpuSlice(), JobSet())


def detect(environ: Environ) -> World | None:
    """What the first launcher that recognises its variables says, or None.

    Ask `settings.rank_facts` first: a rank of ours carries torchrun's names too.

    Raises:
        SettingError: the variables contradict each other.
    """
    for launcher in LAUNCHERS:
        world = launcher.world(environ)
        if world is not None:
            return _checked(world)
    return None


def rank_variables(world: World) -> dict[str, str]:
    """torchrun's names for a rank of another launcher, so that every library finds them."""
    return {
        "RANK": str(world.rank),
        "LOCAL_RANK": str(world.local_rank),
        "WORLD_SIZE": str(world.world_size),
        "LOCAL_WORLD_SIZE": str(world.local_world_size),
        "GROUP_RANK": str(world.host_index),
        "GROUP_WORLD_SIZE": str(world.hosts),
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
    }


def adopt() -> World | None:
    """Detect the launcher of this process; if it is a rank of one, make it look like one of ours.

    It gets torchrun's names, so far as they are missing, and sees its own device alone. Call it
    before the first device is made; calling it again changes nothing.

    Raises:
        SettingError, DevicesError, UsageError: what the launcher, or PJRT_DEVICE, says is wrong.
    """
    environ = environment()
    if rank_facts(environ) is not None:
        return None
    world = detect(environ)
    if world is not None and not world.of_hosts:
        missing = {
            key: value for key, value in rank_variables(world).items() if not environ.get(key)
        }
        publish(missing)
        publish(
            devices.missing_variables(
                world.local_rank, world.local_world_size, environ, devices.probe()
            )
        )
    return world


def rank_of(world: World | None) -> int | None:
    """The rank that another launcher made this process, or None where there is no launcher.

    Raises:
        UsageError: it is one host of several; ranks of different hosts are not joined yet.
    """
    if world is not None and world.of_hosts:
        raise UsageError(
            f"this is host {world.host_index} of {world.hosts} of {world.launcher}: ranks of "
            "several hosts are joined under torchrun, srun or mpirun only; start the script with "
            "one of them, or unset the variables that name the other hosts"
        )
    return world.rank if world is not None else None


def expand_nodes(listing: str) -> list[str]:
    """Slurm's "tux[1-3,05],head" as names: tux1, tux2, tux3, tux05, head.

    Raises:
        SettingError: it is no such list.
    """
    names: list[str] = []
    part = r"[^,\[\]\s]*(?:\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\][^,\[\]\s]*)*"
    if not re.fullmatch(rf"(?!$){part}(?:,{part})*", listing.strip()):
        raise SettingError(
            f"SLURM_STEP_NODELIST: {listing!r} cannot be read; a list such as tux[1-3],head is "
            "needed"
        )
    for item in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", listing.strip()):
        names += _expand(item)
    return names


def expand_tasks(counts: str) -> list[int]:
    """Slurm's "2(x3),1" as one number per node: 2, 2, 2, 1.

    Raises:
        SettingError: it is no such list.
    """
    numbers: list[int] = []
    for item in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item.strip())
        if match is None:
            raise SettingError(
                f"SLURM_STEP_TASKS_PER_NODE: {counts!r} cannot be read; "
                "a list such as 2(x3),1 is needed"
            )
        numbers += [int(match[1])] * int(match[2] or 1)
    return numbers


def _expand(item: str) -> list[str]:
    match = re.match(r"([^\[]*)\[([^\]]*)\](.*)", item)
    if match is None:
        return [item.strip()] if item.strip() else []
    names = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            names += _expand(f"{match[1]}{number:0{len(first)}d}{match[3]}")
    return names


def _of_hosts(launcher: str, index: int, hosts: int, address: str, port: int) -> World:
    return World(
        launcher,
        rank=index,
        world_size=hosts,
        host_index=index,
        hosts=hosts,
        master_addr=address,
        master_port=port or _DEFAULT_PORT,
        of_hosts=True,
    )


def _port(environ: Environ) -> int:
    return integer(environ, "MASTER_PORT") or integer(environ, "XLA_COORDINATOR_PORT") or 0


def _checked(world: World) -> World:
    pairs = (
        ("rank", world.rank, world.world_size),
        ("local rank", world.local_rank, world.local_world_size),
        ("host", world.host_index, world.hosts),
    )
    for what, index, count in pairs:
        if index >= count:
            raise SettingError(
                f"{world.launcher}: {what} {index} of {count}; an index below the count is needed: "
                "the variables are left over from another job, unset them"
            )
    return world

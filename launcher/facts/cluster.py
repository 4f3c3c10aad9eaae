"""Which other launcher started this process, and what it says about the job.

One class per launcher: `read(environ)` is None where the launcher is not it. `detect` asks them in
order. A `Rank` means that this process IS a rank: nothing must be multiplied. A `HostOfMany` (a TPU
slice, a JobSet) means one process per host: each starts its host's ranks.
"""

import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch_xdist.launcher.facts.errors import SettingError
from torch_xdist.launcher.facts.settings import Environ, asked_device, integer, text
from torch_xdist.system import rank as ranks
from torch_xdist.system.errors import RankError
from torch_xdist.system.rank import Rank

# Ports from here up are not given to clients by default on Linux (32768 to 60999 are). The last
# one stays free: JAX's service takes the port above the one that is computed.
_FIRST_PORT = 61440
_PORTS = 65535 - _FIRST_PORT
_DEFAULT_PORT = 8547


@dataclass(frozen=True, slots=True)
class HostOfMany:
    """This process is the only one of its host, one host of several.

    Host 0 listens at `master_addr` and `master_port`. `names` are those of all hosts, in order, or
    none where they are not known.
    """

    launcher: str
    host_index: int
    hosts: int
    master_addr: str
    master_port: int
    names: tuple[str, ...] = ()

    def called(self, index: int) -> str:
        """What people call a host: "host 10.0.0.2 (worker 1)"."""
        return f"host {self.names[index]} (worker {index})" if self.names else f"host {index}"


Found = Rank | HostOfMany


class Launcher(Protocol):
    """One launcher: its name, and how its variables are read."""

    name: str

    def read(self, environ: Environ) -> Found | None: ...


class Torchrun:
    """torchrun, and all that set the same variables: RANK, LOCAL_RANK, WORLD_SIZE."""

    name = "torchrun"

    def read(self, environ: Environ) -> Found | None:
        if not all(text(environ, name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")):
            return None
        found = ranks.from_environ(environ)
        return found if found.master_port else replace(found, master_port=_port(environ))


class Slurm:
    """srun with more than one task. A batch script's own shell is no task of a step."""

    name = "Slurm (srun)"

    def read(self, environ: Environ) -> Found | None:
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
        return Rank(
            rank,
            size,
            integer(environ, "SLURM_LOCALID") or 0,
            per_node[node] if node < len(per_node) else 1,
            node,
            len(nodes),
            text(environ, "MASTER_ADDR") or ("127.0.0.1" if len(nodes) == 1 else nodes[0]),
            _port(environ) or _FIRST_PORT + (job * 31 + number) % _PORTS,
            launcher=self.name,
        )


class OpenMpi:
    """mpirun of Open MPI with more than one process."""

    name = "Open MPI (mpirun)"

    def read(self, environ: Environ) -> Found | None:
        size = integer(environ, "OMPI_COMM_WORLD_SIZE", least=1)
        rank = integer(environ, "OMPI_COMM_WORLD_RANK")
        if not size or size == 1 or rank is None:
            return None
        local_size = integer(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", least=1) or size
        hosts = integer(environ, "OMPI_MCA_orte_num_nodes", least=1) or max(1, size // local_size)
        return Rank(
            rank,
            size,
            integer(environ, "OMPI_COMM_WORLD_LOCAL_RANK") or 0,
            local_size,
            # mpirun fills host by host unless told otherwise; no variable names the host.
            min(rank // local_size, hosts - 1),
            hosts,
            text(environ, "MASTER_ADDR") or ("127.0.0.1" if hosts == 1 else self._head(environ)),
            _port(environ) or _FIRST_PORT + self._job(environ) % _PORTS,
            launcher=self.name,
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


class Hydra:
    """mpiexec of MPICH and Intel MPI, with more than one process."""

    name = "MPICH or Intel MPI (mpiexec)"

    def read(self, environ: Environ) -> Found | None:
        size = integer(environ, "PMI_SIZE", least=1)
        rank = integer(environ, "PMI_RANK")
        if not size or size == 1 or rank is None:
            return None
        local_size = integer(environ, "MPI_LOCALNRANKS", least=1) or size
        hosts = max(1, size // local_size)
        address, port = text(environ, "MASTER_ADDR"), _port(environ)
        if hosts > 1 and not (address and port):
            raise SettingError(
                f"{self.name} over {hosts} hosts: no variable names the first of them; set "
                "MASTER_ADDR and MASTER_PORT (mpiexec -genv MASTER_ADDR ...)"
            )
        return Rank(
            rank,
            size,
            integer(environ, "MPI_LOCALRANKID") or 0,
            local_size,
            min(rank // local_size, hosts - 1),
            hosts,
            address or "127.0.0.1",
            # No variable names the job; the process that started all ranks of the host does.
            port or _FIRST_PORT + os.getppid() % _PORTS,
            launcher=self.name,
        )


class JobSet:
    """An indexed Kubernetes job, one pod per host, where the number of pods is told as well.

    Kubernetes tells a pod its index, and a name that has it: train-workers-0-3.train. The first
    pod is the same name with 0. How many there are is in no variable and no name.

    Args:
        own_name: this machine's, with its domain.
    """

    name = "a JobSet"
    _COUNTS = ("XLA_RUN_HOSTS", "NUM_PROCESSES", "JAX_NUM_PROCESSES", "WORLD_SIZE")

    def __init__(self, own_name: Callable[[], str] = socket.getfqdn) -> None:
        self._own_name = own_name

    def read(self, environ: Environ) -> Found | None:
        index, pods = integer(environ, "JOB_COMPLETION_INDEX"), self.count(environ)
        if index is None or pods is None or pods == 1:
            return None
        address = text(environ, "MASTER_ADDR") or text(environ, "JAX_COORDINATOR_ADDRESS")
        address = address or self._first_pod(index, pods)
        port = _port(environ) or _DEFAULT_PORT
        return _checked(HostOfMany(self.name, index, pods, _host_of(address), port))

    @classmethod
    def count(cls, environ: Environ) -> int | None:
        """How many pods there are, where somebody says it."""
        counts = (integer(environ, name, least=1) for name in cls._COUNTS)
        return next((count for count in counts if count), None)

    def _first_pod(self, index: int, pods: int) -> str:
        """The name of the pod with index 0, as this one's name says it.

        Raises:
            SettingError: it does not.
        """
        own = self._own_name()
        name, _, domain = own.partition(".")
        if not domain or not name.endswith(f"-{index}"):
            raise SettingError(
                f"JobSet with {pods} pods: no MASTER_ADDR, and the name of this pod, {own}, does "
                f"not say which one is the first (NAME-{index}.SUBDOMAIN would); set MASTER_ADDR "
                "to the host name of the pod with index 0, or give the pods a subdomain: a "
                "headless Service, which a JobSet makes by network.enableDNSHostnames"
            )
        return f"{name.removesuffix(str(index))}0.{domain}"


def alone_in(environ: Environ) -> str:
    """What is told of a pod of many whose number nobody says, so that it is no part of a job."""
    index = integer(environ, "JOB_COMPLETION_INDEX")
    if index is None or JobSet.count(environ) is not None or detect(environ) is not None:
        return ""
    return (
        f"; this pod (JOB_COMPLETION_INDEX={index}) is a job of its own: for one job of all pods "
        "set XLA_RUN_HOSTS to their number"
    )


def _host_of(address: str) -> str:
    """The host of "host:port", or of a host alone; IPv6 ones stand in brackets before a port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address if address.count(":") > 1 else address.partition(":")[0]


class TpuSlice:
    """A TPU slice with several hosts: TPU_WORKER_ID and TPU_WORKER_HOSTNAMES.

    On its CPUs (PJRT_DEVICE=CPU) hosts are joined only where XLA_RUN_HOSTS counts them: a script
    that is tried out on the CPU of one host has the same variables.
    """

    name = "a TPU slice"

    def read(self, environ: Environ) -> Found | None:
        if asked_device(environ) == "CPU" and not integer(environ, "XLA_RUN_HOSTS"):
            return None
        chips = text(environ, "TPU_VISIBLE_CHIPS")
        tasks = [name for name in text(environ, "TPU_PROCESS_ADDRESSES").split(",") if name]
        task = integer(environ, "CLOUD_TPU_TASK_ID")
        if chips and tasks and task is not None:
            return self._rank(task, tasks)
        names = text(environ, "TPU_WORKER_HOSTNAMES").split(",")
        hosts = [name.strip() for name in names if name.strip()]
        index = integer(environ, "TPU_WORKER_ID")
        if len(hosts) < 2 or index is None:
            return None
        return host_of_slice(index, hosts, environ)

    def _rank(self, task: int, tasks: list[str]) -> Rank | None:
        """A process that was given its chip already, by whoever set the variables of libtpu."""
        if len(tasks) == 1:
            return None
        names = [name.rsplit(":", 1)[0] for name in tasks]
        hosts = list(dict.fromkeys(names))
        mine = names[task] if task < len(names) else names[0]
        return Rank(
            task,
            len(tasks),
            names[:task].count(mine),
            names.count(mine),
            hosts.index(mine),
            len(hosts),
            hosts[0],
            _DEFAULT_PORT,
            launcher=self.name + " (TPU_PROCESS_ADDRESSES)",
        )


LAUNCHERS: tuple[Launcher, ...] = (
    *(Torchrun(), Slurm(), OpenMpi(), Hydra(), TpuSlice(), JobSet()),
)


def detect(environ: Environ) -> Found | None:
    """What the first launcher that recognises its variables says, or None.

    A rank of our own launcher carries torchrun's names too.

    Raises:
        SettingError: the variables contradict each other.
    """
    for launcher in LAUNCHERS:
        try:
            found = launcher.read(environ)
            if found is not None:
                return found.checked() if isinstance(found, Rank) else found
        except RankError as error:
            raise SettingError(str(error)) from None
    return None


def host_of_slice(index: int, names: Sequence[str], environ: Environ) -> HostOfMany:
    """One host of a TPU slice; the first one is where they meet, unless MASTER_ADDR names another.

    Raises:
        SettingError: there is no such host.
    """
    address, port = text(environ, "MASTER_ADDR") or names[0], _port(environ) or _DEFAULT_PORT
    found = HostOfMany(TpuSlice.name, index, len(names), address, port, tuple(names))
    return _checked(found)


def expand_nodes(listing: str, where: str = "SLURM_STEP_NODELIST") -> list[str]:
    """Slurm's "tux[1-3,05],head" as names: tux1, tux2, tux3, tux05, head.

    Raises:
        SettingError: it is no such list.
    """
    names: list[str] = []
    part = r"[^,\[\]\s]*(?:\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\][^,\[\]\s]*)*"
    if not re.fullmatch(rf"(?!$){part}(?:,{part})*", listing.strip()):
        raise SettingError(
            f"{where}: {listing!r} cannot be read; a list such as tux[1-3],head is needed"
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


def _port(environ: Environ) -> int:
    return integer(environ, "MASTER_PORT") or integer(environ, "XLA_COORDINATOR_PORT") or 0


def _checked(found: HostOfMany) -> HostOfMany:
    if found.host_index >= found.hosts:
        raise SettingError(
            f"{found.launcher}: host {found.host_index} of {found.hosts}; an index below the count "
            "is needed: the variables are left over from another job, unset them"
        )
    return found

"""Where the ranks of a job go: their environment, their cores, their threads. Starts nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_xdist.launcher.facts import devices
from torch_xdist.launcher.facts.errors import DevicesError, LauncherError
from torch_xdist.launcher.facts.host import HostFacts
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.settings import environment
from torch_xdist.system.rank import RANK_VARIABLES, Rank


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all ranks of an attempt are told: where the others are, and what only they know."""

    control: str = ""
    coordinator: str = ""
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    secret: bytes = b""


@dataclass(frozen=True, slots=True)
class Place:
    """One host as `rank_orders` sees it: what it says of itself, and where it keeps its logs.

    Without facts (it has not been asked) its ranks get neither cores nor devices.
    """

    facts: HostFacts | None
    log_dir: str = ""


def shared_environ(job: Job) -> dict[str, str]:
    """What must be set before torch and jax are imported, which the ranks of a host do together."""
    environ = {**environment(), **job.env}
    return {**library_environ(environ, job.nprocs), **job.timeouts.to_environ()}


def library_environ(environ: Mapping[str, str], ranks: int) -> dict[str, str]:
    """What libraries read when the process of so many ranks on this host starts.

    How many threads they start, and that the C library asks for large pages where it has large
    memory: a step of ResNet-18 on the CPU then takes 0.89 of the time, and an all-reduce, which
    reads the pages of others one by one, 0.7 (docs/collectives.md). The kernel gives them if it
    may (transparent_hugepage: madvise or always); another C library ignores the variable.
    """
    shared = devices.thread_variables(devices.own_cores(), ranks, environ)
    if "GLIBC_TUNABLES" not in environ:
        shared["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    if ranks > 1 and "OPENBLAS_NUM_THREADS" not in environ:
        # numpy's BLAS starts its threads when it is imported; a nursery must have none.
        shared["OPENBLAS_NUM_THREADS"] = "1"
    return shared


def common_order(job: Job, log_dir: str, ranks: range) -> dict[str, Any]:
    """What the ranks of a host are told alike: of all that are shown only its own are named."""
    return {
        "task": {
            "kind": job.kind,
            "argv": job.argv,
            "sys_path": job.sys_path,
            "beat_s": job.timeouts.beat_s,
        },
        "env": job.env,
        "cwd": job.cwd,
        "log_dir": log_dir,
        "tee": job.teed(ranks),
        "stdin_rank": job.stdin_rank,
    }


def device_of(job: Job, names: Sequence[str], hosts: Sequence[HostFacts]) -> devices.Choice:
    """The device kind of a job on several hosts: the one they all have, or that was asked for.

    Raises:
        DevicesError: they differ, or one has fewer devices than ranks, or nothing is known of one.
    """
    found: dict[str, list[str]] = {}
    choice = devices.Choice(job.device, "")
    shares = enumerate(zip(names, hosts, job.shares(), strict=True))
    for index, (name, facts, ranks) in shares:
        environ = {**facts.environ, **job.env}
        try:
            choice = devices.choose(environ, facts.found)
            devices.local_ranks(ranks, choice, environ, facts.found)
        except LauncherError as error:
            raise DevicesError(f"host {name}: {error}").due_to(index) from None
        if choice.kind == "TPU" and facts.trouble:
            raise DevicesError(f"host {name}: {facts.trouble}").due_to(index)
        found.setdefault(choice.kind, []).append(name)
    if len(found) > 1:
        told = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items())
        raise DevicesError(
            f"the hosts have different devices ({told}); leave some out, or let all use the CPU "
            "with PJRT_DEVICE=CPU"
        )
    return choice


def rank_orders(
    job: Job, attempt: int, meeting: Meeting, places: Sequence[Place]
) -> list[list[dict[str, Any]]]:
    """For each host one order per rank: who it is, its variables, its cores.

    The variables of `job.env` are the same for all, and in none of them.

    Raises:
        DevicesError: a TPU host cannot say which part of which slice it is.
    """
    orders, first = [], job.ranks().start
    part = job.part
    for place_index, (place, count) in enumerate(zip(places, job.shares(), strict=True)):
        index = part.host_index if part else place_index
        on_host = [
            Rank(
                first + local,
                job.world_size,
                local,
                count,
                index,
                part.hosts if part else len(places),
                master_addr=meeting.master_addr,
                master_port=meeting.master_port,
                job_id=job.job_id,
                attempt=attempt,
                max_restarts=job.max_restarts + (job.max_preemptions or 0),
                log_dir=place.log_dir,
                error_file=f"{place.log_dir}/rank-{first + local}.error.json"
                if place.log_dir
                else "",
                control=meeting.control,
                coordinator=meeting.coordinator,
                task=job.kind,
                secret=meeting.secret,
            )
            for local in range(count)
        ]
        worker = job.hosts[index].worker if job.hosts else -1
        orders.append(_on_host(job, place.facts, on_host, index if worker < 0 else worker))
        first += count
    return orders


def _on_host(
    job: Job, facts: HostFacts | None, ranks: Sequence[Rank], worker: int
) -> list[dict[str, Any]]:
    """The orders of the ranks of one host, which is to be that worker of its TPU slice."""
    if facts is None:
        return [{"rank": rank.rank, "env": _environ_of(job, rank)} for rank in ranks]
    environ = {**facts.environ, **job.env}
    if job.device == "TPU":
        _check_slice(facts, ranks[0], worker)
    choice = devices.Choice(job.device, "")
    cores = devices.split_cores(facts.cores, len(ranks))
    orders = []
    for rank, own in zip(ranks, cores, strict=True):
        env = {
            **_environ_of(job, rank),
            **devices.device_variables(choice, rank.local_rank, len(ranks), environ, facts.whole),
            **_jax_variables(environ),
        }
        threads = _threads(environ, len(facts.cores), len(ranks))
        orders.append({"rank": rank.rank, "env": env, "cores": list(own), "threads": threads})
    return orders


def _environ_of(job: Job, rank: Rank) -> dict[str, str]:
    env = rank.to_environ()
    if not job.ranks_of_command:
        env = {name: value for name, value in env.items() if name not in RANK_VARIABLES}
    return env


def _check_slice(facts: HostFacts, first: Rank, place: int) -> None:
    """libtpu numbers ranks by the workers of the slice: hosts must stand in that order."""
    if facts.whole is None:
        raise DevicesError(facts.trouble)
    worker, joined = facts.whole.worker_id, first.hosts > 1
    if joined and worker != place:
        raise DevicesError(
            f"host {facts.name} is worker {worker} of its TPU slice, and stands at place "
            f"{place} of the hosts; name the hosts in the order of the workers"
        )


def _jax_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """A lost peer is an error to catch, not an abort, and SIGTERM ends a rank; for programs that
    import jax by themselves (`worker` tells the one that is imported already)."""
    wanted = {"JAX_ENABLE_RECOVERABILITY": "true", "JAX_ENABLE_PREEMPTION_SERVICE": "false"}
    return {name: value for name, value in wanted.items() if name not in environ}


def _threads(environ: Mapping[str, str], cores: int, ranks: int) -> int:
    """Threads of torch in one rank: OMP_NUM_THREADS, else its share of the cores."""
    asked = environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() else max(1, cores // ranks)

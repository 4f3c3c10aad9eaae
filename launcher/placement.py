"""Where the ranks of a job go: their environment, their cores, their threads. Starts nothing."""

import os
from collections.abc import Mapping
from pathlib import Path

from torch_xdist.launcher import devices
from torch_xdist.launcher.frames import Message
from torch_xdist.launcher.job import Job
from torch_xdist.launcher.settings import RankFacts, environment

_OF_A_RANK = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT", "XLA_RUN_COORDINATOR"),
)


def shared_environ(job: Job) -> dict[str, str]:
    """What must be set before torch and jax are imported, which the ranks of a host do together."""
    environ = {**environment(), **job.env}
    shared = devices.thread_variables(devices.own_cores(), job.nprocs, environ)
    if job.nprocs > 1 and "OPENBLAS_NUM_THREADS" not in environ:
        # numpy's BLAS starts its threads when it is imported; a nursery must have none.
        shared["OPENBLAS_NUM_THREADS"] = "1"
    return {**shared, **job.timeouts.to_environ()}


def rank_orders(
    job: Job,
    attempt: int,
    log_dir: Path,
    control: str,
    coordinator: str,
    master: tuple[str, int],
) -> list[Message]:
    """One order per rank of this host: who it is, its variables, its cores."""
    environ = {**environment(), **job.env}
    choice = devices.Choice(job.device, "")
    cores = devices.split_cores(devices.own_cores(), job.nprocs)
    threads = _threads(environ, cores, job.nprocs)
    orders = []
    for rank in range(job.nprocs):
        facts = RankFacts(
            rank,
            rank,
            job.nprocs,
            job.nprocs,
            master_addr=master[0],
            master_port=master[1],
            job_id=job.job_id,
            attempt=attempt,
            log_dir=str(log_dir),
            control=control,
        )
        env = {
            **job.env,
            **facts.to_environ(),
            **devices.device_variables(choice, rank, job.nprocs, environ),
            "XLA_RUN_COORDINATOR": coordinator,
            "XLA_RUN_TASK": job.kind,
            **_jax_variables(environ),
        }
        if not job.ranks_of_command:
            env = {name: value for name, value in env.items() if name not in _OF_A_RANK}
        orders.append(
            {
                "rank": rank,
                "index": rank,
                "env": env,
                "cores": list(cores[rank]),
                "threads": threads,
            }
        )
    return orders


def _jax_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """A lost peer is an error to catch, not an abort, and SIGTERM ends a rank; for programs that
    import jax by themselves (`worker` tells the one that is imported already)."""
    wanted = {"JAX_ENABLE_RECOVERABILITY": "true", "JAX_ENABLE_PREEMPTION_SERVICE": "false"}
    return {name: value for name, value in wanted.items() if name not in environ}


def _threads(environ: Mapping[str, str], cores: list[tuple[int, ...]], nprocs: int) -> int:
    """Threads of torch in one rank: OMP_NUM_THREADS, else its share of the cores."""
    asked = environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() else max(1, len(os.sched_getaffinity(0)) // nprocs)

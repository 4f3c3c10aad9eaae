"""Where the ranks of a job go: their environment, their cores, their threads. Starts nothing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_xdist.launcher.facts import devices, tpu
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


def shared_environ(job: Job) -> dict[str, str]:
    """What must be set before torch and jax are imported, which the ranks of a host do together."""
    environ = {**environment(), **job.env}
    shared = devices.thread_variables(devices.own_cores(), job.nprocs, environ)
    if job.nprocs > 1 and "OPENBLAS_NUM_THREADS" not in environ:
        # numpy's BLAS starts its threads when it is imported; a nursery must have none.
        shared["OPENBLAS_NUM_THREADS"] = "1"
    return {**shared, **job.timeouts.to_environ()}


def common_order(job: Job, log_dir: str) -> dict[str, Any]:
    """What all ranks of a job are told alike."""
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
        "tee": job.teed(),
        "stdin_rank": job.stdin_rank,
    }


def rank_orders(job: Job, attempt: int, log_dir: str, meeting: Meeting) -> list[dict[str, Any]]:
    """One order per rank of this host: who it is, its variables, its cores.

    `log_dir` is "" where no logs are kept. The variables of `job.env` are the same for all, and in
    none of them.
    """
    environ = {**environment(), **job.env}
    choice = devices.Choice(job.device, "")
    whole = tpu.read_slice(environ) if job.device == "TPU" else None
    cores = devices.split_cores(devices.own_cores(), job.nprocs)
    threads = _threads(environ, job.nprocs)
    orders = []
    for number in range(job.nprocs):
        rank = Rank(
            number,
            job.nprocs,
            number,
            job.nprocs,
            master_addr=meeting.master_addr,
            master_port=meeting.master_port,
            job_id=job.job_id,
            attempt=attempt,
            max_restarts=job.max_restarts,
            log_dir=log_dir,
            error_file=f"{log_dir}/rank-{number}.error.json" if log_dir else "",
            control=meeting.control,
            coordinator=meeting.coordinator,
            task=job.kind,
            secret=meeting.secret,
        )
        env = {
            **rank.to_environ(),
            **devices.device_variables(choice, number, job.nprocs, environ, whole),
            **_jax_variables(environ),
        }
        if not job.ranks_of_command:
            env = {name: value for name, value in env.items() if name not in RANK_VARIABLES}
        orders.append(
            {"rank": number, "env": env, "cores": list(cores[number]), "threads": threads}
        )
    return orders


def _jax_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """A lost peer is an error to catch, not an abort, and SIGTERM ends a rank; for programs that
    import jax by themselves (`worker` tells the one that is imported already)."""
    wanted = {"JAX_ENABLE_RECOVERABILITY": "true", "JAX_ENABLE_PREEMPTION_SERVICE": "false"}
    return {name: value for name, value in wanted.items() if name not in environ}


def _threads(environ: Mapping[str, str], nprocs: int) -> int:
    """Threads of torch in one rank: OMP_NUM_THREADS, else its share of the cores."""
    asked = environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() else max(1, len(os.sched_getaffinity(0)) // nprocs)

"""The options of `xla-run` that name other hosts, and what they mean."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from torch_xdist.launcher.backends.gcloud import Gcloud
from torch_xdist.launcher.backends.slurm_batch import Batch
from torch_xdist.launcher.facts import cluster, devices, host_list, settings
from torch_xdist.launcher.facts.devices import Choice, Found
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.settings import Environ


@dataclass(frozen=True)
class Asked:
    """The values of those options."""

    hosts: str
    hostfile: str
    ssh_command: str
    slurm: bool
    tpu: str
    zone: str
    project: str
    batch: Batch

    def given(self) -> list[str]:
        """Those options that were given for one way to other hosts, as typed."""
        named = ("hosts", "hostfile", "ssh_command", "slurm", "tpu", "zone", "project")
        found = [name for name in named if getattr(self, name)]
        found += [name for name in ("requeue", "sbatch_options") if getattr(self.batch, name)]
        return [f"--{name.replace('_', '-')}" for name in found]


@dataclass(frozen=True)
class Reached:
    """The hosts, each with its number of ranks; none: this one. `way` and `command` as in `Job`."""

    hosts: list[Host]
    way: str = "ssh"
    command: tuple[str, ...] = ()


def options(command: Callable[..., None]) -> Callable[..., None]:
    """`--hosts`, `--hostfile`, `--ssh-command`, `--slurm`, `--tpu` with its place, `--python`."""
    for option in reversed(
        (
            click.option(
                "--hosts", default="", help="run there: a,b or tpu[001-003,7] or me@c:2222"
            ),
            click.option(
                "--hostfile", default="", help="a file of lines HOST [slots=N] [address=A]"
            ),
            click.option("--ssh-command", default="", help="reaches them [XLA_RUN_SSH; ssh]"),
            click.option(
                "--slurm", is_flag=True, help="run on the nodes of the Slurm job that this is in"
            ),
            click.option("--tpu", default="", help="run on the workers of these TPU VMs: a or a,b"),
            click.option("--zone", default="", help="of the TPU VMs [gcloud's own setting]"),
            click.option("--project", default="", help="of the TPU VMs [gcloud's own setting]"),
            click.option(
                "--python", default="", help="the interpreter there [the path of this one]"
            ),
        )
    ):
        command = option(command)
    return command


def batch_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--nodes`, `--gpus-per-node`, `--requeue`, `--sbatch-options`."""
    for option in reversed(
        (
            click.option(
                "--nodes",
                type=click.IntRange(1),
                help="with --slurm: submit a new job of N nodes by sbatch (--dry-run: its script); "
                "with --k8s: N pods",
            ),
            click.option(
                "--gpus-per-node", type=click.IntRange(1), help="of the new Slurm job, or the pods"
            ),
            click.option(
                "--requeue", is_flag=True, help="Slurm starts the new job again where it is ended"
            ),
            click.option(
                "--sbatch-options", default="", help='more of the new job: "--time=2:00:00 -p gpu"'
            ),
        )
    ):
        command = option(command)
    return command


def taken_from(values: dict[str, Any]) -> Asked:
    """The values of our options; they are gone from `values` then."""
    given = {one.name: values.pop(one.name) for one in fields(Batch) if one.name in values}
    batch = Batch(**given)
    names = [one.name for one in fields(Asked) if one.name != "batch"]
    return Asked(**{name: values.pop(name) for name in names}, batch=batch)


def reached(asked: Asked, nprocs: int | None, environ: Environ, *, once: bool) -> Reached:
    """The hosts that the options name.

    Raises:
        UsageError: they cannot be read, or say no number of ranks; there is no Slurm job.
        SettingError: XLA_RUN_SSH is no command line.
        HostError: gcloud does not know the TPU, or it is not ready.
    """
    named = {
        "--hosts": asked.hosts,
        "--hostfile": asked.hostfile,
        "--slurm": asked.slurm,
        "--tpu": asked.tpu,
    }
    given = [name for name, value in named.items() if value]
    asked.batch.check(slurm=asked.slurm)
    if (asked.zone or asked.project) and not asked.tpu:
        raise UsageError("--zone and --project say where a TPU VM is; give --tpu NAME too")
    if len(given) > 1:
        all_of_them = "both" if len(given) == 2 else "all"
        raise UsageError(f"{' and '.join(given)} {all_of_them} name the hosts; leave one out")
    if given and once:
        raise UsageError("--once runs the command on this host; leave out --once, or the hosts")
    if not given:
        return Reached([])
    if asked.tpu:
        return _of_gcloud(asked, nprocs)
    if asked.slurm:
        return _of_slurm(asked.batch, nprocs, environ)
    command = settings.ssh_command(
        {"XLA_RUN_SSH": asked.ssh_command} if asked.ssh_command else environ
    )
    return Reached(host_list.with_slots(_named_hosts(asked), nprocs), "ssh", tuple(command))


def _named_hosts(asked: Asked) -> list[Host]:
    if asked.hosts:
        return host_list.of_option(asked.hosts)
    try:
        lines = Path(asked.hostfile).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {asked.hostfile}: it cannot be read: {error}") from error
    return host_list.of_file(lines, asked.hostfile)


def _of_slurm(batch: Batch, nprocs: int | None, environ: Environ) -> Reached:
    """The nodes of the job that this process is in; those of a new one have no names yet."""
    number, nodes = settings.slurm_job(environ)
    if number and batch.nodes:
        raise UsageError(
            f"--nodes {batch.nodes}: it submits a new Slurm job, and this is inside job {number}; "
            "leave it out, to run on the nodes of that"
        )
    if not number and not batch.nodes:
        raise UsageError(
            "--slurm: this is inside no Slurm job (SLURM_JOB_ID is not set); run it in salloc or a "
            "batch script, or give --nodes N, to submit a new job"
        )
    names = (
        cluster.expand_nodes(nodes, "SLURM_JOB_NODELIST")
        if number
        else [f"NODE_{index}" for index in range(batch.nodes or 0)]
    )
    hosts = host_list.with_slots([Host(name) for name in names], nprocs)
    return Reached(hosts, "slurm", ("srun", f"--jobid={number}"))


def _of_gcloud(asked: Asked, nprocs: int | None) -> Reached:
    """The workers of all TPUs, those of the first one first; gcloud is asked for them.

    Raises:
        UsageError: a name can be none of a TPU's.
    """
    places = [f"--{name}={getattr(asked, name)}" for name in ("zone", "project")]
    command = ("gcloud", *(place for place in places if not place.endswith("=")))
    tpus = host_list.of_option(asked.tpu, "--tpu")
    if any(named.port for named in tpus):
        raise UsageError(f"--tpu {asked.tpu}: a TPU has a name and no port; write a,b or me@a")
    hosts = [
        worker if not nprocs else replace(worker, slots=nprocs)
        for named in tpus
        for worker in Gcloud(command).workers(named.name, named.user)
    ]
    return Reached(hosts, "gcloud", command)


def asked_device(hosts: Sequence[Host], environ: Environ) -> Choice:
    """The device kind that PJRT_DEVICE asks for, "" where the hosts shall say what they have.

    Raises:
        UsageError: it is none, or XDIST_TRANSPORT asks several hosts to share memory.
    """
    if len(hosts) > 1 and settings.text(environ, "XDIST_TRANSPORT").lower() == "host":
        raise UsageError(f"XDIST_TRANSPORT=host: {len(hosts)} hosts share no memory; unset it")
    asked = devices.asked_device(environ)
    if asked in ("", "CPU"):
        return Choice(asked, "")
    # Whether they have it is theirs to say.
    there = Found(dict.fromkeys(devices.KINDS, 1), dict.fromkeys(devices.KINDS, True))
    return devices.choose(environ, there)

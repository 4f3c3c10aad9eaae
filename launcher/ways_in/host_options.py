"""The options of `xla-run` that name other hosts, and what they mean."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import click

from torch_xdist.launcher.attempts import options as restart_options
from torch_xdist.launcher.attempts.options import GoingOn
from torch_xdist.launcher.backends import introduction, node_door, tpu_vms
from torch_xdist.launcher.backends.slurm.batch import Batch
from torch_xdist.launcher.facts import cluster, devices, host_list, settings
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.settings import Environ
from torch_xdist.launcher.named_option import Named
from torch_xdist.launcher.node import secret_file
from torch_xdist.launcher.on_ray.request import hosts_of, resources_of, way_command
from torch_xdist.launcher.ways_in.param_types import NodeCount
from torch_xdist.system import addresses

# torchrun's own.
_MASTER_PORT = 29400


@dataclass(frozen=True)
class NodesAsked:
    """The same command is started on each of `nnodes` machines; this is number `node_rank`."""

    nnodes: int | None = None
    least: int = 0  # fewer than that are enough; 0: all are needed
    node_rank: int | None = None
    master_addr: str = ""
    master_port: int | None = None

    @property
    def are_several(self) -> bool:
        return self.nnodes is not None and self.nnodes > 1

    def check(self) -> None:
        """Whether the options fit together.

        Raises:
            UsageError: they do not.
        """
        if self.nnodes is None:
            if self.node_rank is not None or self.master_addr or self.master_port:
                raise UsageError(
                    "--node-rank, --master-addr and --master-port belong to --nnodes N; give it too"
                )
            return
        if self.node_rank is None and self.nnodes > 1:
            raise UsageError(
                f"--nnodes {self.nnodes}: which of them this is is not said; give --node-rank, "
                f"from 0 to {self.nnodes - 1}, another one on each"
            )
        if self.node_rank is not None and self.node_rank >= self.nnodes:
            raise UsageError(
                f"--node-rank {self.node_rank}: with --nnodes {self.nnodes} a number from 0 to "
                f"{self.nnodes - 1} is needed"
            )


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
    nodes: NodesAsked = NodesAsked()
    ray: bool = False
    ray_address: str = ""
    ray_resources: str = ""
    going_on: GoingOn = field(default_factory=GoingOn)

    def given(self) -> list[str]:
        """Those options that were given for one way to other hosts, as typed."""
        named = ["hosts", "hostfile", "ssh_command", "slurm", "tpu", "zone", "project"]
        named += ["ray", "ray_address", "ray_resources"]
        found = [name for name in named if getattr(self, name)]
        found += [name for name in ("requeue", "sbatch_options") if getattr(self.batch, name)]
        typed = [f"--{name.replace('_', '-')}" for name in found]
        return [*typed, *self.going_on.given()]


@dataclass(frozen=True)
class Reached:
    """The hosts, each with its number of ranks; none: this one. `way` and `command` as in `Job`."""

    hosts: list[Host]
    way: str = "ssh"
    command: tuple[str, ...] = ()


def options(command: Callable[..., None]) -> Callable[..., None]:
    """`--hosts`, `--hostfile`, `--ssh-command`, `--slurm`, `--tpu` with its place, `--ray`, ..."""
    for option in reversed(
        (
            click.option(
                "--hosts",
                type=Named("a,b"),
                default="",
                help="run there: a,b or tpu[001-003,7] or me@c:2222",
            ),
            click.option(
                "--hostfile",
                type=Named("hosts.txt"),
                default="",
                help="a file of lines HOST [slots=N] [address=A]",
            ),
            click.option("--ssh-command", default="", help="reaches them [XLA_RUN_SSH; ssh]"),
            click.option(
                "--slurm", is_flag=True, help="run on the nodes of the Slurm job that this is in"
            ),
            click.option(
                "--tpu",
                type=Named("my-tpu"),
                default="",
                help="run on the workers of these TPU VMs, or of a queued resource's: a or a,b",
            ),
            click.option("--zone", default="", help="of the TPU VMs [gcloud's own setting]"),
            click.option("--project", default="", help="of the TPU VMs [gcloud's own setting]"),
            click.option("--ray", is_flag=True, help="run on --nodes N nodes of a Ray cluster"),
            click.option(
                "--ray-address",
                type=Named("10.0.0.1:6379"),
                default="",
                help="of the cluster [RAY_ADDRESS; auto]",
            ),
            click.option(
                "--ray-resources",
                default="",
                help="""of each node, as JSON [a CPU for each rank]: '{"CPU": 8, "TPU": 4}'""",
            ),
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
                "with --k8s: N pods; with --ray: on so many",
            ),
            click.option(
                "--gpus-per-node",
                type=click.IntRange(1),
                help="of the Slurm job, the pods, or on Ray",
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


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--nnodes`, `--node-rank`, `--master-addr`, `--master-port`, by torchrun's names too."""
    for option in reversed(
        (
            click.option(
                "--nnodes",
                type=NodeCount(),
                help="this same command is started by you on N machines (needs a secret); "
                "MIN:MAX: it goes on with those that are there, at least MIN",
            ),
            click.option(
                "--secret-file",
                default="",
                callback=secret_file.take,
                expose_value=False,
                help="what all nodes know, in a file of mode 600 [XLA_RUN_SECRET: the digits]",
            ),
            click.option(
                "--node-rank",
                "--node_rank",
                type=click.IntRange(0),
                help="which of them this is; node 0 leads the job, the others come to it",
            ),
            click.option(
                "--master-addr",
                "--master_addr",
                type=Named("10.0.0.1"),
                default="",
                help="where the others reach node 0 [MASTER_ADDR]",
            ),
            click.option(
                "--master-port",
                "--master_port",
                type=click.IntRange(1, 65535),
                help=f"the port it listens on [MASTER_PORT; {_MASTER_PORT}]",
            ),
        )
    ):
        command = option(command)
    return command


def taken_from(values: dict[str, Any]) -> Asked:
    """The values of our options; they are gone from `values` then."""
    given = {one.name: values.pop(one.name) for one in fields(Batch) if one.name in values}
    batch = Batch(**given)
    going_on = restart_options.taken_from(values)
    if (counts := values.get("nnodes")) is not None:
        least, most = counts
        values |= {"nnodes": most, "least": least if least < most else 0}
    of_nodes = [one.name for one in fields(NodesAsked) if one.name in values]
    nodes = NodesAsked(**{name: values.pop(name) for name in of_nodes})
    names = [one.name for one in fields(Asked) if one.name not in ("batch", "nodes", "going_on")]
    plain = {name: values.pop(name) for name in names}
    return Asked(**plain, batch=batch, nodes=nodes, going_on=going_on)


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
        "--ray": asked.ray,
        "--nnodes": asked.nodes.are_several,
    }
    given = [name for name, value in named.items() if value]
    if (asked.ray_address or asked.ray_resources) and not asked.ray:
        raise UsageError("--ray-address and --ray-resources are for a Ray cluster; give --ray too")
    if not asked.ray:
        asked.batch.check(slurm=asked.slurm)
    asked.nodes.check()
    if (asked.zone or asked.project) and not asked.tpu:
        raise UsageError("--zone and --project say where a TPU VM is; give --tpu NAME too")
    if len(given) > 1:
        all_of_them = "both" if len(given) == 2 else "all"
        raise UsageError(f"{' and '.join(given)} {all_of_them} name the hosts; leave one out")
    if given and once:
        raise UsageError("--once runs the command on this host; leave out --once, or the hosts")
    if not given:
        return Reached([])
    if asked.nodes.are_several:
        return _of_nodes(asked.nodes, nprocs, environ)
    if asked.ray:
        return _of_ray(asked, nprocs)
    if asked.tpu:
        return of_tpus(asked.tpu, asked.zone, asked.project, nprocs)
    if asked.slurm:
        return _of_slurm(asked.batch, nprocs, environ)
    command = settings.ssh_command(
        {"XLA_RUN_SSH": asked.ssh_command} if asked.ssh_command else environ
    )
    return Reached(host_list.with_slots(_named_hosts(asked), nprocs), "ssh", tuple(command))


def _of_ray(asked: Asked, nprocs: int | None) -> Reached:
    """Hosts that Ray will choose; with GPUs `-n` may be left out.

    Raises:
        UsageError: how many hosts or ranks is not said, or an option has no meaning there.
    """
    batch = asked.batch
    if not batch.nodes:
        raise UsageError("--ray: how many nodes of the cluster is not said; give --nodes N")
    if batch.requeue or batch.sbatch_options:
        raise UsageError("--requeue and --sbatch-options are for a Slurm job; leave them out")
    ranks = nprocs or batch.gpus_per_node
    if not ranks:
        raise UsageError("--ray: how many ranks each node gets is not said; give -n N")
    resources = resources_of(asked.ray_resources, ranks, batch.gpus_per_node)
    command = way_command(asked.ray_address, resources)
    return Reached(hosts_of(batch.nodes, ranks), "ray", command)


def _of_nodes(nodes: NodesAsked, nprocs: int | None, environ: Environ) -> Reached:
    """All nodes, by number; `-n auto` is what this machine has.

    Raises:
        UsageError: where node 0 is, or how many ranks each has, is not said.
        SettingError: MASTER_PORT is no number.
    """
    name = nodes.master_addr or settings.text(environ, "MASTER_ADDR")
    if not name:
        raise UsageError(
            f"--nnodes {nodes.nnodes}: where node 0 is is not said; give --master-addr HOST, the "
            "same on all nodes"
        )
    port = nodes.master_port or settings.integer(environ, "MASTER_PORT", least=1) or _MASTER_PORT
    if nprocs == 0:
        found = devices.probe()
        nprocs = devices.local_ranks(None, devices.choose(environ, found), environ, found)
    hosts = [Host(introduction.name_of(index)) for index in range(nodes.nnodes or 0)]
    if nodes.node_rank == 0:
        # Else it is found on the way out of this machine.
        hosts[0] = replace(hosts[0], address=node_door.own_address_of(name))
    where = addresses.bracketed(name), str(port)
    return Reached(host_list.with_slots(hosts, nprocs), "nodes", where)


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


def of_tpus(names: str, zone: str = "", project: str = "", nprocs: int | None = None) -> Reached:
    """The workers of all TPUs, those of the first one first; gcloud is asked for them.

    Args:
        names: as of `--tpu`.
        zone, project: "": gcloud's own settings.

    Raises:
        UsageError: a name can be none of a TPU's.
        HostError: gcloud does not know one, or it is not ready.
    """
    places = (f"--zone={zone}" if zone else "", f"--project={project}" if project else "")
    command = ("gcloud", *filter(None, places))
    tpus = host_list.of_option(names, "--tpu")
    if any(named.port for named in tpus):
        raise UsageError(f"--tpu {names}: a TPU has a name and no port; write a,b or me@a")
    hosts = [
        worker if not nprocs else replace(worker, slots=nprocs)
        for named in tpus
        for worker in tpu_vms.workers(command, named.name, named.user)
    ]
    return Reached(hosts, "gcloud", command)

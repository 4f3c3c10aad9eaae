"""The options of `xla-run` for Kubernetes, and the plan that they and a command line describe."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import click
from click.core import ParameterSource

from torch_xdist.launcher.backends.slurm import batch as slurm_batch
from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.k8s import plan as plans
from torch_xdist.launcher.k8s.plan import Plan
from torch_xdist.launcher.named_option import Named
from torch_xdist.system.masking import masked

# Pods come one after the other: nodes are made for them, and images pulled.
WAIT_S = 1800.0
# What has done its work when the pods run; all other options are for the xla-run in them.
_FLAGS = ("--print", "--detach", "--dry-run")
_WITH_VALUE = (
    *("--k8s", "--image", "--namespace", "--context", "--tpu-accelerator", "--tpu-topology"),
    *("--cpu", "--memory", "--shm-size", "--nodes", "--gpus-per-node", "--python", "--env"),
    *("--env-file", "--max-restarts", "--rendezvous-timeout"),
)
_OF_ATTEMPTS = ("--spares", "--min-hosts", "--max-preemptions")
_OF_NODES = ("nnodes", "node_rank", "master_addr", "master_port")
_BY_USER = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


@dataclass(frozen=True)
class Asked:
    """The values of the options that are for Kubernetes alone, as typed."""

    k8s: str = ""
    image: str = ""
    namespace: str = ""
    context: str = ""
    tpu_accelerator: str = ""
    tpu_topology: str = ""
    cpu: str = ""
    memory: str = ""
    shm_size: str = ""
    prints: bool = False
    detach: bool = False

    def check(self) -> None:
        """Refuse options that would mean nothing.

        Raises:
            UsageError: there is one.
        """
        given = [f"--{one.name.replace('_', '-')}" for one in fields(self) if self._has(one.name)]
        if given and not self.k8s:
            names = ", ".join(given).replace("--prints", "--print")
            raise UsageError(f"{names}: for a job on Kubernetes; give --k8s NAME too")

    def _has(self, name: str) -> bool:
        # Every kind of job can be one that is not followed.
        return name not in ("k8s", "detach") and bool(getattr(self, name))


def options(command: Callable[..., None]) -> Callable[..., None]:
    """`--k8s NAME`, and what its pods are to be."""
    for option in reversed(
        (
            click.option(
                "--k8s",
                type=Named("train"),
                default="",
                metavar="NAME",
                help="run as job NAME in pods of Kubernetes (a JobSet); without COMMAND: follow it",
            ),
            click.option("--image", default="", help="what the pods run, torch-xdist in it"),
            click.option("--namespace", default="", help="of the pods [kubectl's own setting]"),
            click.option("--context", default="", help="the cluster [kubectl's own setting]"),
            click.option("--tpu-accelerator", default="", help="such as tpu-v5-lite-podslice"),
            click.option("--tpu-topology", default="", help="of the slice, such as 2x4"),
            click.option("--cpu", default="", help="cores that each pod asks for"),
            click.option("--memory", default="", help="that each pod gets, such as 64Gi"),
            click.option("--shm-size", default="", help="of /dev/shm in each pod [8Gi]"),
            click.option("--print", "prints", is_flag=True, help="the manifest, and do nothing"),
            click.option(
                "--detach",
                is_flag=True,
                help="return once the job is up; then see attach, logs, stop",
            ),
        )
    ):
        command = option(command)
    return command


def taken_from(values: dict[str, Any]) -> Asked:
    """The values of these options; they are gone from `values` then."""
    return Asked(**{one.name: values.pop(one.name) for one in fields(Asked)})


def wait_s(asked: float | None, variable: float) -> float:
    """How long pods wait for each other: as asked for, else longer than hosts that are there."""
    if asked is not None:
        return asked
    return variable if variable != Timeouts().rendezvous_s else WAIT_S


@dataclass(frozen=True)
class Beside:
    """What other options of `xla-run` say of the same job.

    `hosts` are the options that name hosts of another kind, as typed; `nprocs` the ranks of each
    pod, None for one per GPU or chip; `python` the interpreter in the image, "" for its `xla-run`.
    """

    hosts: Sequence[str]
    nodes: int | None
    gpus_per_node: int | None
    nprocs: int | None
    once: bool
    stdin: bool
    job_id: str
    python: str
    max_restarts: int | None
    env: Mapping[str, str]
    timeouts: Timeouts
    wait_s: float

    def check(self) -> None:
        """Refuse what has no meaning in pods.

        Raises:
            UsageError: there is something.
        """
        if again := [name for name in self.hosts if name in _OF_ATTEMPTS]:
            raise UsageError(
                f"{' and '.join(again)}: Kubernetes chooses the hosts of a job, and starts all "
                "pods again where one was evicted or preempted, 10 times unless --max-restarts N "
                "says how often; leave it out, and give that"
            )
        if self.hosts:
            both = " and ".join(("--k8s", *self.hosts))
            raise UsageError(f"{both}: they are different ways to run one job; leave one out")
        if self.once:
            raise UsageError("--once runs the command on this host; leave out --once, or --k8s")
        if self.stdin:
            raise UsageError("--stdin: a rank in a pod cannot read this terminal; leave it out")
        if self.job_id:
            raise UsageError("--job-id: a job on Kubernetes has the name of --k8s; leave it out")


def beside(
    ctx: click.Context,
    values: Mapping[str, Any],
    hosts: Sequence[str],
    batch: slurm_batch.Batch,
    env: Mapping[str, str],
) -> Beside:
    """What the other options say.

    Args:
        values: theirs, by name.
        hosts, batch: those of them that are read already.
        env: the variables of --env and --env-file.

    Raises:
        SettingError: a variable for a timeout is no duration.
    """
    # Which pod of how many each is, and where they meet, is said by us.
    said = [name for name in _OF_NODES if ctx.get_parameter_source(name) in _BY_USER]
    limits_s = {row.field: values[row.field] for row in settings.TIMEOUTS}
    timeouts = settings.timeouts(settings.environment(), **limits_s)
    is_asked = ctx.get_parameter_source("max_restarts") is not ParameterSource.DEFAULT
    return Beside(
        hosts=[*hosts, *(f"--{name.replace('_', '-')}" for name in said)],
        nodes=batch.nodes,
        gpus_per_node=batch.gpus_per_node,
        nprocs=values["nprocs"],
        once=values["once"],
        stdin=values["stdin_rank"] is not None,
        job_id=values["job_id"],
        python=values["python"],
        max_restarts=values["max_restarts"] if is_asked else None,
        env=env,
        timeouts=timeouts,
        wait_s=wait_s(values["rendezvous_s"], timeouts.rendezvous_s),
    )


def plan(asked: Asked, beside: Beside, line: Sequence[str], words: Sequence[str]) -> Plan:
    """The job that the options and the command describe.

    Args:
        line: the words after `xla-run`; those at its end are the command, `words`.

    Raises:
        UsageError: they cannot be right.
    """
    beside.check()
    if not words:
        raise UsageError("--k8s: no command; write it after the options: python train.py")
    env = beside.env
    secret = {name: value for name, value in env.items() if masked(name, value) != value}
    found = Plan(
        name=asked.k8s,
        image=asked.image,
        nodes=beside.nodes or 1,
        argv=tuple(words),
        env={name: value for name, value in env.items() if name not in secret},
        secrets=secret,
        namespace=asked.namespace,
        gpus=beside.gpus_per_node or 0,
        tpu_accelerator=asked.tpu_accelerator,
        tpu_topology=asked.tpu_topology,
        cpu=asked.cpu,
        memory=asked.memory,
        shm_size=asked.shm_size or "8Gi",
        max_restarts=beside.max_restarts,
        graceful_s=beside.timeouts.graceful_s,
    ).check()
    program = [beside.python, "-m", "torch_xdist.launcher"] if beside.python else ["xla-run"]
    inner = [*_ranks(found, beside.nprocs), f"--rendezvous-timeout={_shown(beside.wait_s)}"]
    own = [word for word in line[: len(line) - len(words)] if word != "--"]
    inner += slurm_batch.without(own, _WITH_VALUE, _FLAGS)
    argv = plans.command(found.name, found.nodes, program, inner, words)
    return replace(found, argv=argv)


def _ranks(found: Plan, nprocs: int | None) -> list[str]:
    """`-n`, where the number of devices says it."""
    devices = found.gpus or found.tpu_chips
    if nprocs is None and devices:
        return ["-n", str(devices)]
    if not nprocs:
        raise UsageError("--k8s: how many ranks each pod gets is not said; give -n N")
    return []


def _shown(seconds: float) -> str:
    return "off" if math.isinf(seconds) else f"{seconds:g}s"

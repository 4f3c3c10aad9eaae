"""The options of `xla-run` that say how often, and on which hosts, a job is started again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import click

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.host_list import Host

# Where going on without a host is what was asked for.
_PREEMPTIONS = 10
# As of torchrun's last call.
_ELASTIC_WAIT_S = 30.0


@dataclass(frozen=True)
class GoingOn:
    """The values of those options that have to do with hosts; see `options`."""

    max_preemptions: int | None = None
    spares: int = 0
    min_hosts: int = 0
    elastic_wait: float | None = None

    def given(self) -> list[str]:
        """Those that were given, as typed."""
        values = {"--max-preemptions": self.max_preemptions is not None}
        values |= {"--spares": bool(self.spares), "--min-hosts": bool(self.min_hosts)}
        return [name for name, is_given in values.items() if is_given]

    def preemptions(self, least: int) -> int | None:
        """The budget for preemptions; None: they count as failures.

        Args:
            least: with how many hosts an attempt may begin, where that is fewer than all.
        """
        is_flexible = bool(self.spares or least)
        default = _PREEMPTIONS if is_flexible else None
        return default if self.max_preemptions is None else self.max_preemptions

    def elastic_wait_s(self, least_nodes: int) -> float:
        """How long enough nodes wait for the others.

        Args:
            least_nodes: how many are enough; 0: all are needed.

        Raises:
            UsageError: then there is no such wait.
        """
        if self.elastic_wait is not None and not least_nodes:
            raise UsageError("--elastic-wait: for fewer nodes than all; give --nnodes MIN:MAX")
        return _ELASTIC_WAIT_S if self.elastic_wait is None else self.elastic_wait

    def shared_out(
        self, hosts: Sequence[Host], *, are_named: bool
    ) -> tuple[list[Host], list[Host]]:
        """The hosts of the first attempt, and the spares.

        Args:
            are_named: whether they are asked for by us, and do not come by themselves.

        Raises:
            UsageError: they are too few, or none can be replaced.
        """
        asked = [name for name in self.given() if name != "--max-preemptions"]
        if asked and not are_named:
            raise UsageError(
                f"{asked[0]}: for hosts that are named by --hosts, --hostfile, --slurm or --tpu; "
                "nodes that come by themselves have --nnodes MIN:MAX, and Ray chooses its own"
            )
        if asked and any(host.worker > 0 for host in hosts):
            raise UsageError(
                f"{asked[0]}: a TPU slice of several workers runs on all of them; name TPUs of one "
                "worker each"
            )
        if asked and self.spares >= len(hosts):
            raise UsageError(
                f"--spares {self.spares}: {len(hosts)} hosts are named, and one at least is no "
                "spare; name more"
            )
        first = len(hosts) - self.spares
        if asked and self.min_hosts > first:
            raise UsageError(
                f"--min-hosts {self.min_hosts}: a number from 1 to {first} is needed, as many as "
                "there are hosts that are no spares"
            )
        return [*hosts[:first]], [*hosts[first:]]


def options(seconds: click.ParamType) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`--max-restarts`, `--max-preemptions`, `--spares`, `--min-hosts`, `--elastic-wait`.

    Args:
        seconds: the type of a duration.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(_made(seconds)):
            command = option(command)
        return command

    return decorated


def _made(seconds: click.ParamType) -> Sequence[Callable[..., Any]]:
    return (
        click.option(
            "--max-restarts",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            help="after a failure start the whole job again, at most this often",
        ),
        click.option(
            "--max-preemptions",
            type=click.IntRange(0),
            help="after a lost host, or a rank that ended by SIGTERM or with code 75, start it "
            "again, at most this often [these count as failures; "
            f"{_PREEMPTIONS} with --spares, --min-hosts or --nnodes MIN:MAX]",
        ),
        click.option(
            "--spares",
            type=click.IntRange(0),
            default=0,
            help="the last N of the hosts stand in for others that are lost",
        ),
        click.option(
            "--min-hosts",
            type=click.IntRange(0),
            default=0,
            help="go on with fewer of the named hosts, as long as there are so many",
        ),
        click.option(
            "--elastic-wait",
            type=seconds,
            help="with --nnodes MIN:MAX: how long fewer than MAX wait for the others "
            f"[{_ELASTIC_WAIT_S:g} s]",
        ),
    )


def taken_from(values: dict[str, Any]) -> GoingOn:
    """The values of our options; they are gone from `values` then."""
    names = [one.name for one in fields(GoingOn) if one.name in values]
    return GoingOn(**{name: values.pop(name) for name in names})

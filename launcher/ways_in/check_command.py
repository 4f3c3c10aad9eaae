"""`xla-run check`, as it is typed: whether these hosts, or this one, could run a job."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from torch_xdist.launcher.backends.over_command import Way
from torch_xdist.launcher.backends.ways import way_of
from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.ways_in import host_options
from torch_xdist.launcher.ways_in.param_types import Count, Seconds

_LIMIT_S = 15.0


@click.command(context_settings={"allow_interspersed_args": False})
@host_options.options
@host_options.node_options
@click.option("-n", "--nprocs", type=Count(), help="ranks per host that shall find a device")
@click.option("-m", "is_module", is_flag=True, help="COMMAND is a module, as for python -m")
@click.option("--no-bandwidth", is_flag=True, help="send no data between the hosts")
@click.option("--limit", "limit_s", type=Seconds(), default=_LIMIT_S, help="for all of it [15 s]")
@click.option(
    "--rendezvous-timeout",
    "come_s",
    type=Seconds(),
    help="with --nnodes: how long nodes may take to come [XLA_RUN_RENDEZVOUS_TIMEOUT; 300 s]",
)
@click.option("--json", "as_json", is_flag=True, help="everything that was found, as one object")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]")
def check(
    words: Sequence[str],
    nprocs: int | None,
    is_module: bool,
    no_bandwidth: bool,
    limit_s: float,
    come_s: float | None,
    as_json: bool,
    python: str,
    **named: Any,
) -> None:
    """Could a job run? Look at these hosts, or at this one, before you start it.

    \b
    xla-run check --hosts a,b -n 8 python train.py
    xla-run check --hostfile hosts
    xla-run check -n 4 python train.py
    xla-run check --nnodes 2 --node-rank R --master-addr A   (on each machine, with its R;
                                                              2:4: of those that come in 30 s)

    One row per host: whether a login works, which Python, torch, jax and torch-xdist it has,
    whether the code of COMMAND is the same, its clock, devices and who holds them, whether hosts
    reach each other on any port and how fast, room on the disk and in /dev/shm, open files. What
    is wrong is marked with ! and told below: what was found, what is needed, what to do.

    Exit codes: 0 a job could run (there may be warnings), 71 it could not, 73 a host cannot be
    reached, 2 the options cannot be right.
    """
    # Other commands need none of it, and start sooner.
    from torch_xdist.launcher.ways_in import checking

    if not 0 < limit_s < settings.OFF:
        raise UsageError("--limit: a check has an end; give it seconds, such as 60")
    # Here a host needs no number of ranks; 1 is what a job has at least.
    asked, environ = host_options.taken_from(named), settings.environment()
    reached = host_options.reached(asked, nprocs or 1, environ, once=False)
    way: checking.ByThemselves | Way
    if reached.way == "nodes":
        limits = settings.timeouts(environ, rendezvous_s=come_s)
        number, least = asked.nodes.node_rank or 0, asked.nodes.least
        way = checking.ByThemselves(number, reached.command, limits, least)
    else:
        way = way_of(reached.way, reached.command)
    check = checking.Check(
        hosts=reached.hosts,
        way=way,
        nprocs=nprocs or 1,
        words=words,
        is_module=is_module,
        python=python or sys.executable,
        measures_rates=not no_bandwidth,
        limit_s=limit_s,
    )
    sys.exit(check.run(as_json=as_json))

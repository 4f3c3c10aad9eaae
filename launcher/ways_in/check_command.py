"""`xla-run check`: whether these hosts, or this one, could run a job; starts none."""

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

import click

from torch_xdist.launcher.backends.ssh import SshHosts
from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import ExitCode, UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.preflight import inquiry, judge, table
from torch_xdist.launcher.preflight.inquiry import Answer, Inquiry
from torch_xdist.launcher.preflight.judge import Plan
from torch_xdist.launcher.preflight.trouble import Trouble
from torch_xdist.launcher.ways_in import command_line, host_options
from torch_xdist.launcher.ways_in.param_types import Count, Seconds

_LIMIT_S = 15.0
_CLEAR = "\r\x1b[K"
_MOST_NAMES = 5


@click.command(context_settings={"allow_interspersed_args": False})
@host_options.options
@click.option("-n", "--nprocs", type=Count(), help="ranks per host that shall find a device")
@click.option("-m", "is_module", is_flag=True, help="COMMAND is a module, as for python -m")
@click.option("--no-bandwidth", is_flag=True, help="send no data between the hosts")
@click.option("--limit", "limit_s", type=Seconds(), default=_LIMIT_S, help="for all of it [15 s]")
@click.option("--json", "as_json", is_flag=True, help="everything that was found, as one object")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]")
def check(
    words: Sequence[str],
    nprocs: int | None,
    is_module: bool,
    no_bandwidth: bool,
    limit_s: float,
    as_json: bool,
    hosts: str,
    hostfile: str,
    ssh_command: str,
    python: str,
) -> None:
    """Could a job run? Look at these hosts, or at this one, before you start it.

    \b
    xla-run check --hosts a,b -n 8 python train.py
    xla-run check --hostfile hosts
    xla-run check -n 4 python train.py

    One row per host: whether a login works, which Python, torch, jax and torch-xdist it has,
    whether the code of COMMAND is the same, its clock, devices and who holds them, whether hosts
    reach each other on any port and how fast, room on the disk and in /dev/shm, open files. What
    is wrong is marked with ! and told below: what was found, what is needed, what to do.

    Exit codes: 0 a job could run (there may be warnings), 71 it could not, 73 a host cannot be
    reached, 2 the options cannot be right.
    """
    if not 0 < limit_s < settings.OFF:
        raise UsageError("--limit: a check has an end; give it seconds, such as 60")
    environ = settings.environment()
    # Here a host needs no number of ranks; 1 is what a job has at least.
    others = host_options.hosts_of(hosts, hostfile, nprocs or 1, once=False)
    plan = Plan(_job(others, nprocs, environ), limit_s)
    question = _question(words, plan.job, environ, is_module=is_module)
    try:
        if others:
            answers = _of_others(
                plan, question, python or sys.executable, environ,
                ssh_command=ssh_command, measures_rates=not no_bandwidth,
            )  # fmt: skip
        else:
            answers = [inquiry.here(question, socket.gethostname(), limit_s)]
    except KeyboardInterrupt:
        _progress("")
        sys.exit(ExitCode.INTERRUPTED)
    found = judge.troubles(answers, plan)
    if as_json:
        click.echo(_json(answers, found))
    else:
        click.echo(table.text(answers, found, marked=_marked, warned=_warned))
    sys.exit(judge.exit_code(found))


def _job(others: list[Host], nprocs: int | None, environ: dict[str, str]) -> Job:
    """The job that the hosts are to be judged for.

    Raises:
        UsageError: PJRT_DEVICE cannot be right.
    """
    kind = host_options.asked_device(others, environ).kind
    ranks = sum(host.slots for host in others) or nprocs or 1
    return Job("program", [], ranks, device=kind, cwd=os.getcwd(), hosts=others)


def _question(
    words: Sequence[str], job: Job, environ: dict[str, str], *, is_module: bool
) -> dict[str, Any]:
    """What every host finds out, as `measure.facts` takes it."""
    code = {}
    if words:
        command = command_line.read(words, job.cwd, is_module=is_module)
        code = {"kind": command.kind, "name": command.argv[0]}
    log_root, is_named = settings.log_root(environ)
    return {
        "device": job.device,
        "alone": len(job.hosts) < 2,
        "address": "",
        "cwd": job.cwd,
        "log_dir": str(log_root) if is_named else "",
        "code": code,
    }


def _of_others(
    plan: Plan,
    question: dict[str, Any],
    python: str,
    environ: dict[str, str],
    *,
    ssh_command: str,
    measures_rates: bool,
) -> list[Answer]:
    ssh = host_options.ssh_command(ssh_command, environ)
    env = settings.passed_on(environ)
    backend = SshHosts(plan.job.hosts, ssh, python, env, inquiry.PROBE)
    asked = Inquiry(
        plan.job.hosts, backend, question, plan.limit_s,
        measures_rates=measures_rates, show=_show_waiting,
    )  # fmt: skip
    try:
        return asked.run()
    finally:
        _progress("")


def _show_waiting(answered: int, total: int, waiting: list[str]) -> None:
    names = ", ".join(waiting[:_MOST_NAMES]) + ", ..." * (len(waiting) > _MOST_NAMES)
    what = f"waiting for {names}" if waiting else "trying the ways between them"
    _progress(f"{answered} of {total} hosts answered; {what}")


def _progress(line: str) -> None:
    """On a terminal, one line that goes again."""
    if sys.stderr.isatty():
        click.echo(f"{_CLEAR}{line}", nl=False, err=True)


def _marked(cell: str) -> str:
    return click.style(cell, fg="red")


def _warned(cell: str) -> str:
    return click.style(cell, fg="yellow")


def _json(answers: Sequence[Answer], found: Sequence[Trouble]) -> str:
    code = judge.exit_code(found)
    told = {
        "ok": code == 0,
        "exit_code": code,
        "hosts": [answer.to_json() for answer in answers],
        "troubles": [dataclasses.asdict(trouble) for trouble in found],
    }
    return json.dumps(told, indent=1)

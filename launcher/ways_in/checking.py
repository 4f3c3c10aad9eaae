"""What `xla-run check` does: asks the hosts, or this one, and prints what they answer.

On a terminal it shows who is waited for; in a pipe there are no colours, and only the result.
"""

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from torch_xdist.launcher.backends.over_command import HostsOverCommand, Way
from torch_xdist.launcher.facts import devices, settings
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.preflight import inquiry, judge, table
from torch_xdist.launcher.preflight.checked_node import CheckedNode
from torch_xdist.launcher.preflight.checked_nodes import CheckedNodes
from torch_xdist.launcher.preflight.inquiry import Answer, Inquiry, Starter
from torch_xdist.launcher.preflight.judge import Plan
from torch_xdist.launcher.preflight.trouble import Trouble
from torch_xdist.launcher.viewing.screen import cleaned
from torch_xdist.launcher.ways_in import command_line

_CLEAR = "\r\x1b[K"
_MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class ByThemselves:
    """The hosts are nodes that come to node 0 at `where`; this is number `node` of them.

    At least `least` of them are needed; 0: all.
    """

    node: int
    where: tuple[str, ...]
    limits: Timeouts
    least: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    `hosts` are other machines, each with its ranks; none: this one, with `nprocs`. `words` are the
    command whose code is compared, or empty. The other fields are options of `xla-run check`.
    """

    hosts: list[Host]
    nprocs: int
    words: Sequence[str]
    is_module: bool
    way: Way | ByThemselves
    python: str
    measures_rates: bool
    limit_s: float

    def run(self, *, as_json: bool) -> int:
        """Ask, print, and return the exit code.

        Raises:
            UsageError: PJRT_DEVICE cannot be right, or there is no such command here.
            HostError: there is no ssh here, or node 0 is not found, or cannot listen.
            SettingError: nodes have no secret.
        """
        environ = settings.environment()
        job = self._job(environ)
        question = self._question(job, environ)
        try:
            if isinstance(self.way, ByThemselves):
                return self._with_nodes(self.way, job, question, as_json=as_json)
            if self.hosts:
                env = settings.passed_on(environ)
                backend = HostsOverCommand(self.way, job.hosts, self.python, env, inquiry.PROBE)
                answers = self._asked(job, backend, question)
            else:
                answers = [inquiry.here(question, socket.gethostname(), self.limit_s)]
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        return self._told(answers, job, as_json=as_json)[0]

    def _with_nodes(
        self, way: ByThemselves, job: Job, question: dict[str, Any], *, as_json: bool
    ) -> int:
        """Node 0 asks, and shows the table; the others answer. All end with the same code."""
        secret = settings.taken_secret()
        job = replace(
            job, way="nodes", way_command=[*way.where], timeouts=way.limits, least_hosts=way.least
        )
        if way.node:
            return CheckedNode(job, way.node, secret, question, _say).run()
        nodes = CheckedNodes(job, secret, _say)
        ended = int(ExitCode.INTERNAL), "node 0 has failed"
        try:
            job = replace(job, hosts=nodes.gather(_show_coming))
            ended = self._told(self._asked(job, nodes, question), job, as_json=as_json)
        except KeyboardInterrupt:
            ended = int(ExitCode.INTERRUPTED), "node 0 was told to stop"
        finally:
            _progress("")
            nodes.close(*ended)
        return ended[0]

    def _told(self, answers: list[Answer], job: Job, *, as_json: bool) -> tuple[int, str]:
        """Print what is wrong, or that nothing is; the exit code, and that in a line."""
        found = judge.troubles(answers, Plan(job, self.limit_s))
        if as_json:
            click.echo(_json(answers, found))
        else:
            click.echo(table.text(answers, found, marked=_marked, warned=_warned))
        return judge.exit_code(found), table.verdict(answers, found)

    def _job(self, environ: dict[str, str]) -> Job:
        """The job that the hosts are to be judged for."""
        kind = devices.of_hosts(len(self.hosts), environ).kind
        ranks = sum(host.slots for host in self.hosts) or self.nprocs
        job = Job("program", [], ranks, device=kind, cwd=os.getcwd(), hosts=self.hosts)
        if not self.words:
            return job
        command = command_line.read(self.words, job.cwd, is_module=self.is_module)
        return replace(job, kind=command.kind, argv=[*command.argv])

    def _question(self, job: Job, environ: dict[str, str]) -> dict[str, Any]:
        """What every host finds out, as `measure.facts` takes it."""
        code = {"kind": job.kind, "name": job.argv[0]} if job.argv else {}
        log_root, is_named = settings.log_root(environ)
        return {
            "device": job.device,
            "alone": len(job.hosts) < 2,
            "address": "",
            "cwd": job.cwd,
            "log_dir": str(log_root) if is_named else "",
            "code": code,
        }

    def _asked(self, job: Job, backend: Starter, question: dict[str, Any]) -> list[Answer]:
        asked = Inquiry(
            job.hosts,
            backend,
            question,
            self.limit_s,
            measures_rates=self.measures_rates,
            show=_show_waiting,
        )
        try:
            return asked.run()
        finally:
            _progress("")


def _show_waiting(answered: int, total: int, waiting: list[str]) -> None:
    what = f"waiting for {_first_of(waiting)}" if waiting else "trying the ways between them"
    _progress(f"{answered} of {total} hosts answered; {what}")


def _show_coming(came: int, total: int, missing: list[str]) -> None:
    _progress(f"{came} of {total} nodes are here; waiting for {_first_of(missing)}")


def _say(line: str) -> None:
    """Beside the table: who is waited for, and who was sent away."""
    _progress("")
    click.echo(cleaned(line), err=True)


def _first_of(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + ", ..." * (len(names) > _MOST_NAMES)


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

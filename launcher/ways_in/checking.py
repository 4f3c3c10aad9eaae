"""What `xla-run check` does: asks the hosts, or this one, and prints what they answer.

On a terminal it shows who is waited for; in a pipe there are no colours, and only the result.
"""

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from torch_xdist.launcher.backends.over_command import HostsOverCommand, Way
from torch_xdist.launcher.facts import devices, settings
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.preflight import inquiry, judge, table
from torch_xdist.launcher.preflight.inquiry import Answer, Inquiry
from torch_xdist.launcher.preflight.judge import Plan
from torch_xdist.launcher.preflight.trouble import Trouble
from torch_xdist.launcher.ways_in import command_line

_CLEAR = "\r\x1b[K"
_MOST_NAMES = 5


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
    way: Way
    python: str
    measures_rates: bool
    limit_s: float

    def run(self, *, as_json: bool) -> int:
        """Ask, print, and return the exit code.

        Raises:
            UsageError: PJRT_DEVICE cannot be right, or there is no such command here.
            HostError: there is no ssh here.
        """
        environ = settings.environment()
        plan = Plan(self._job(environ), self.limit_s)
        question = self._question(plan.job, environ)
        try:
            if self.hosts:
                answers = self._of_others(question, environ)
            else:
                answers = [inquiry.here(question, socket.gethostname(), self.limit_s)]
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        found = judge.troubles(answers, plan)
        if as_json:
            click.echo(_json(answers, found))
        else:
            click.echo(table.text(answers, found, marked=_marked, warned=_warned))
        return judge.exit_code(found)

    def _job(self, environ: dict[str, str]) -> Job:
        """The job that the hosts are to be judged for."""
        kind = devices.of_hosts(len(self.hosts), environ).kind
        ranks = sum(host.slots for host in self.hosts) or self.nprocs
        return Job("program", [], ranks, device=kind, cwd=os.getcwd(), hosts=self.hosts)

    def _question(self, job: Job, environ: dict[str, str]) -> dict[str, Any]:
        """What every host finds out, as `measure.facts` takes it."""
        code = {}
        if self.words:
            command = command_line.read(self.words, job.cwd, is_module=self.is_module)
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

    def _of_others(self, question: dict[str, Any], environ: dict[str, str]) -> list[Answer]:
        env = settings.passed_on(environ)
        asked = Inquiry(
            self.hosts,
            HostsOverCommand(self.way, self.hosts, self.python, env, inquiry.PROBE),
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

"""`xla-run attach JOB`: what a job shows from now on, as in the terminal that it was started in."""

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from torch_xdist.launcher.facts import registry, settings
from torch_xdist.launcher.facts.errors import ExitCode, HostError, UsageError
from torch_xdist.launcher.viewing import reader
from torch_xdist.launcher.viewing.elsewhere import Elsewhere
from torch_xdist.launcher.viewing.events import Facts, decoded, encoded
from torch_xdist.launcher.viewing.on_option import OnHost, begun, show_error
from torch_xdist.launcher.viewing.screen import Screen
from torch_xdist.launcher.viewing.view import View
from torch_xdist.launcher.ways_in.param_types import JobName


class _Attach(OnHost):
    """Elsewhere it is told the events, which are shown by the screen here."""

    def elsewhere(self, ctx: click.Context, asked: Elsewhere) -> int:
        """See `OnHost`."""
        if ctx.params["as_json"]:
            return super().elsewhere(ctx, asked)
        reader.leave_with()
        told = replace(asked, words=[asked.words[0], "--json", *asked.words[1:]])
        command = begun(told)
        lines = command.lines(show_error)
        code = shown(map(decoded, lines), timestamps=ctx.params["timestamps"])
        for _ in lines:  # it ends by itself now
            pass
        if code is None:
            code = command.exit_code()
            if code == ExitCode.INTERRUPTED:
                _say_detached(ctx.params["name"], f" --on {asked.host.destination}")
        return code


@click.command(cls=_Attach)
@click.argument("name", metavar="JOB", type=JobName())
@click.option("--from-start", is_flag=True, help="first all that its launcher still has")
@click.option("-n", "--tail", type=click.IntRange(0), default=0, help="first the last N lines")
@click.option("--timestamps", is_flag=True, help="the time of day before every line that is shown")
@click.option("--json", "as_json", is_flag=True, help="one JSON object per event and line")
def attach(name: str, from_start: bool, tail: int, timestamps: bool, as_json: bool) -> None:
    """Show what JOB shows, from now on, until it ends.

    \b
    xla-run attach JOB
    xla-run attach --from-start JOB
    xla-run attach --on me@login JOB

    Ctrl-C detaches, as does the end of who reads it (`| head`), and the job runs on; `xla-run stop
    JOB` stops it. The exit code is that of the
    job. Several may look at a job; what is typed goes to none of its ranks.
    """
    record = registry.find(settings.state_dir(settings.environment()), name)
    job = record["job"]
    if not record.get("view"):
        raise UsageError(f"job {job}: it is just starting, or cannot be looked at; see its `logs`")
    view = View(job, record["view"], None if from_start else tail)
    left = _leaves(view.leave)
    reader.leave_with(lambda: _leave_unread(view, left))
    told = _as_json(view.events()) if as_json else shown(view.events(), timestamps=timestamps)
    sys.exit(_exit_code(job, told, left, as_json=as_json))


def _leave_unread(view: View, left: list[int]) -> None:
    left.append(signal.SIGPIPE)
    view.leave()


def shown(told: Iterator[tuple[str, Facts]], *, timestamps: bool) -> int | None:
    """Show the events of a job as its own terminal does; its exit code, None where none came."""
    screen: Screen | None = None
    try:
        for event, facts in told:
            if event == "hello":
                ranks, labels = facts["ranks"], facts["labels"]
                screen = Screen(ranks, timestamps=timestamps, labels=labels)
            elif screen is not None and event == "end":
                screen.say_end(facts["warnings"], facts["text"])
                return _code(facts)
            elif screen is not None:
                screen(event, **facts)
    finally:
        if screen is not None:
            screen.close()
    return None


def _as_json(told: Iterator[tuple[str, Facts]]) -> int | None:
    for event, facts in told:
        sys.stdout.write(encoded(event, facts).decode())
        sys.stdout.flush()
        if event == "end":
            return _code(facts)
    return None


def _code(facts: Facts) -> int:
    return int(ExitCode.INTERNAL) if facts["exit_code"] is None else int(facts["exit_code"])


def _exit_code(job: str, code: int | None, left: list[int], *, as_json: bool) -> int:
    """That of the job; where there is none, this viewer has left, or the launcher has."""
    if code is not None:
        return code
    if not left:
        raise HostError(
            f"job {job}: its launcher is gone without a word, so it was killed; "
            f"its ranks end with it; see `xla-run logs {job}`"
        )
    if not as_json and left[0] != signal.SIGPIPE:
        _say_detached(job)
    return int(ExitCode.INTERRUPTED) if left[0] == signal.SIGINT else 128 + left[0]


def _say_detached(job: str, on: str = "") -> None:
    click.echo(
        f"xla-run: detached from job {job}, which runs on; `xla-run attach{on} {job}` looks at it "
        f"again, `xla-run stop{on} {job}` stops it",
        err=True,
    )


def _leaves(leave: Callable[[], Any]) -> list[int]:
    """Ctrl-C and its like end the look, not the job; the signals that came are in the list."""
    came: list[int] = []

    def hear(number: int, _: object) -> None:
        came.append(number)
        leave()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hear)
    return came

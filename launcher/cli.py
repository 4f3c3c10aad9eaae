"""`xla-run`: start a command as ranks of this host, and look after jobs that run.

xla-run --nprocs 4 -- python train.py --lr 0.1
xla-run ps; xla-run logs JOB; xla-run stack JOB; xla-run stop JOB
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from torch_xdist import __version__
from torch_xdist.launcher import commands, devices, job, placement, report, settings
from torch_xdist.launcher.errors import LauncherError, UsageError
from torch_xdist.launcher.job import Job
from torch_xdist.launcher.runner import Requests, run_job
from torch_xdist.launcher.screen import Screen

_SECRET = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "API_KEY",
    "PRIVATE",
    "ACCESS_KEY",
)


class _RunByDefault(click.Group):
    """`xla-run OPTIONS -- COMMAND` is `xla-run run OPTIONS -- COMMAND`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Subcommands, and the options of `run`, whose name may be left out."""
        found = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return found
        return [*found, *self.commands["run"].shell_complete(ctx, incomplete)]


class _JobName(click.ParamType):
    """The name of a job, or a beginning of it; a shell completes those that run."""

    name = "job"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = [record["job"] for record in job.running(_state_dir())]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class _Seconds(click.ParamType):
    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        try:
            return settings.parse_seconds(value, param.opts[0] if param else "duration")
        except LauncherError as error:
            self.fail(str(error), param, ctx)


def _timeout_options(command: Callable[..., None]) -> Callable[..., None]:
    """One flag per row of the timeout table."""
    for row in reversed(settings.TIMEOUTS):
        option = click.option(
            row.flag,
            row.field,
            type=_Seconds(),
            default=None,
            help=f"{row.meaning} [{row.variable}; {settings.show_seconds(row.default_s)}]",
        )
        command = option(command)
    return command


@click.group(cls=_RunByDefault, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xla-run")
def cli() -> None:
    """Run a command as one process per device, and never leave one behind.

    xla-run [--nprocs N] [OPTIONS] -- python train.py ARGS (see `xla-run run --help`)
    """


@cli.command(context_settings={"ignore_unknown_options": False})
@click.option("-n", "--nprocs", type=int, help="ranks on this host; else run once")
@click.option("--job-id", default="", help="a name; a second job of that name is refused")
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="after a failure start the whole job again, at most this often",
)
@click.option("--log-dir", default="", help="where JOB/attempt-N/rank-R.log goes")
@click.option("--tee", default="all", show_default=True, help="all, none, or ranks such as 0,2")
@click.option("--env", "pairs", multiple=True, metavar="X=Y", help="a variable for every rank")
@click.option("--dry-run", is_flag=True, help="print what would run, and where, and do nothing")
@_timeout_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND")
def run(
    nprocs: int | None,
    job_id: str,
    max_restarts: int,
    log_dir: str,
    tee: str,
    pairs: Sequence[str],
    dry_run: bool,
    words: Sequence[str],
    **limits_s: float | None,
) -> None:
    """Run COMMAND in N ranks (with --nprocs) or once on this host (without)."""
    environ = settings.environment()
    env = dict(_pair(pair) for pair in pairs)
    merged = {**environ, **env}
    choice, ranks = _devices(nprocs, merged)
    command = commands.read(words, os.getcwd())
    spec = Job(
        kind=command.kind,
        argv=list(command.argv),
        nprocs=ranks,
        device=choice.kind,
        headline=devices.start_line(ranks, 1, choice, merged),
        job_id=job.check_id(job_id) if job_id else job.new_id(),
        log_dir=log_dir or settings.text(merged, "XLA_RUN_LOG_DIR"),
        state_dir=str(settings.state_dir(merged)),
        cwd=os.getcwd(),
        sys_path=[command.first_on_path] if command.first_on_path else [],
        env=env,
        tee=_teed(tee, ranks),
        max_restarts=max_restarts,
        timeouts=settings.timeouts(merged, **limits_s),
        ranks_of_command=nprocs is not None,
    )
    if dry_run:
        click.echo(dry_run_text(spec, words))
        return
    sys.exit(_run(spec))


@cli.command()
def ps() -> None:
    """The jobs that run on this host."""
    rows = [("JOB", "RANKS", "UP", "STEP", "ATTEMPT", "FOR", "COMMAND")]
    for record in job.running(_state_dir()):
        status = _ask(record, {"op": "status"})
        rows.append(
            (
                record["job"],
                str(record["ranks"]),
                str(status.get("up", "?")),
                str(max(status.get("steps") or [0])),
                str(record["attempt"]),
                f"{time.time() - record['started']:.0f} s",
                " ".join(record["argv"])[:60],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


@cli.command()
@click.argument("name", metavar="JOB", type=_JobName())
@click.option("--rank", type=int, help="this rank alone")
@click.option("-f", "--follow", is_flag=True, help="go on until the job ends")
def logs(name: str, rank: int | None, follow: bool) -> None:
    """What the ranks of JOB have written (of its newest attempt; also after its end)."""
    folder = _log_folder(name)
    paths = sorted(folder.glob(f"rank-{'*' if rank is None else rank}.log"))
    if not paths:
        raise UsageError(f"job {name}: no log of {f'rank {rank}' if rank is not None else 'it'}")
    read_bytes = dict.fromkeys(paths, 0)
    while True:
        for path in paths:
            with open(path, "rb") as file:
                file.seek(read_bytes[path])
                data = file.read()
            read_bytes[path] += len(data)
            _show_log(path, data, prefixed=len(paths) > 1)
        if not follow or not any(r["job"].startswith(name) for r in job.running(_state_dir())):
            return
        time.sleep(0.3)


@cli.command()
@click.argument("name", metavar="JOB", type=_JobName())
@click.option("--all-threads", "whole", is_flag=True, help="not the main thread alone")
def stack(name: str, whole: bool) -> None:
    """Where every rank of JOB is: its Python stack."""
    record = job.find(_state_dir(), name)
    answer = _ask(record, {"op": "stack"})
    for rank, text in sorted(answer.get("stacks", {}).items(), key=lambda item: int(item[0])):
        click.echo(f"rank {rank}:\n{text.rstrip() if whole else report.main_stack(text)}\n")


@cli.command()
@click.argument("name", metavar="JOB", type=_JobName())
@click.option("--now", is_flag=True, help="without any grace")
def stop(name: str, now: bool) -> None:
    """Stop JOB: SIGTERM to its ranks, then SIGKILL."""
    record = job.find(_state_dir(), name)
    _ask(record, {"op": "stop", "signal": int(signal.SIGTERM), "now": now})
    click.echo(f"job {record['job']}: told to stop")


def dry_run_text(spec: Job, words: Sequence[str]) -> str:
    """Hosts, ranks, their variables and the command of a job, with secrets masked."""
    lines = [spec.headline, f"host 0: this host, in {spec.cwd}"]
    orders = placement.rank_orders(
        spec, 0, job.log_root(spec) / "attempt-0", "CONTROL", "COORDINATOR", ("127.0.0.1", 0)
    )
    shared = placement.shared_environ(spec)
    for order in orders:
        lines.append(f"rank {order['rank']}: {' '.join(words)}")
        for name, value in sorted({**shared, **order["env"]}.items()):
            lines.append(f"  {name}={'***' if _is_secret(name) else value}")
    return "\n".join(lines)


def main() -> None:
    """The entry point; every error of ours is one line and an exit code."""
    code = 0
    try:
        cli.main(prog_name="xla-run", standalone_mode=True)
    except LauncherError as error:
        click.echo(f"xla-run: {str(error).removeprefix('xla-run: ')}", err=True)
        code = error.exit_code
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End now: the interpreter's own exit would wait for a terminal that nobody reads."""
    for stream in (sys.stderr, sys.stdout):
        flush = threading.Thread(target=_flush, args=(stream,), daemon=True)
        flush.start()
        flush.join(2.0)
    os._exit(code)


def _flush(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.flush()


def _run(spec: Job) -> int:
    requests = Requests()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Under nohup SIGHUP is ignored already, and stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda got, _: requests.ask(got))
    screen = Screen(spec.nprocs)
    try:
        ending = run_job(spec, b"", screen, requests)
    finally:
        screen.close()
    for warning in ending.warnings:
        screen.say(f"warning: {warning}")
    if ending.text:
        screen.say(f"xla-run: {ending.text}")
    return ending.exit_code


def _devices(nprocs: int | None, environ: dict[str, str]) -> tuple[devices.Choice, int]:
    found = devices.probe()
    choice = devices.choose(environ, found)
    return choice, devices.local_ranks(nprocs, choice, environ, found) if nprocs is not None else 1


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.replace("_", "a").isalnum() or name[0].isdigit():
        raise UsageError(f"--env {text!r}: the form X=Y is needed, with a variable's name for X")
    return name, value


def _teed(tee: str, ranks: int) -> str:
    if tee in ("all", "none"):
        return tee
    words = tee.split(",")
    if not all(word.isdigit() and int(word) < ranks for word in words):
        raise UsageError(f"--tee {tee!r}: all, none, or ranks from 0 to {ranks - 1} such as 0,2")
    return tee


def _is_secret(name: str) -> bool:
    return any(part in name.upper() for part in _SECRET)


def _state_dir() -> Path:
    return settings.state_dir(settings.environment())


def _ask(record: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    # gRPC takes 0.2 s to import, and most commands do not need it.
    from torch_xdist.launcher import control

    return control.call(record["address"], record["token"], question)


def _log_folder(name: str) -> Path:
    """The log directory of a running job, else of an ended one that kept its logs."""
    for record in job.running(_state_dir()):
        if record["job"].startswith(name):
            return Path(record["log_dir"])
    kept = sorted((_state_dir() / "logs").glob(f"{name}*/attempt-*"))
    if not kept:
        raise UsageError(f"job {name!r}: no such job runs, and no logs of it are kept")
    return kept[-1]


def _show_log(path: Path, data: bytes, *, prefixed: bool) -> None:
    if not data:
        return
    prefix = f"[{path.stem.removeprefix('rank-')}] " if prefixed else ""
    for line in data.decode(errors="replace").splitlines():
        click.echo(f"{prefix}{line}")

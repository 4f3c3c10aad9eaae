"""`xla-run`: start a command as ranks of this host or others, and look after jobs that run.

xla-run -n 4 python train.py --lr 0.1
xla-run --hosts a,b -n 2 python train.py
xla-run --slurm -n 2 python train.py
xla-run --ray --nodes 2 -n 2 python train.py
xla-run --nnodes 2 --node-rank 0 --master-addr a -n 2 python train.py
xla-run --k8s NAME --image IMAGE --nodes 2 -n 2 python train.py
xla-run check --hosts a,b -n 2 python train.py
xla-run --detach -n 4 python train.py
xla-run ps; xla-run attach JOB; xla-run logs JOB; xla-run stack JOB; xla-run stop --on HOST JOB
xla-run profile JOB --seconds 5
"""

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from torch_xdist import __version__
from torch_xdist.launcher.attempts import options as restart_options
from torch_xdist.launcher.backends.slurm import batch as slurm_batch
from torch_xdist.launcher.facts import cluster, devices, job, settings
from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import LauncherError, UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.head.requests import Requests
from torch_xdist.launcher.head.runner import run_job
from torch_xdist.launcher.k8s import command as k8s_command
from torch_xdist.launcher.k8s import options as k8s_options
from torch_xdist.launcher.rehearsal.command import compile_
from torch_xdist.launcher.shipping import options as ship_options
from torch_xdist.launcher.viewing.events import in_turn
from torch_xdist.launcher.viewing.screen import Screen, cleaned
from torch_xdist.launcher.ways_in import (
    command_line,
    detached,
    host_options,
    job_commands,
    preview,
)
from torch_xdist.launcher.ways_in.attach_command import attach
from torch_xdist.launcher.ways_in.check_command import check
from torch_xdist.launcher.ways_in.param_types import Count, Seconds
from torch_xdist.system.rank import Rank

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The options of other launchers are known by these names, too.
_NPROCS_NAMES = ("-n", "-np", "--nprocs", "--nproc-per-node", "--nproc_per_node")


class _KeepsItsLine(click.Command):
    """A command that knows the words it was called with, as `ctx.meta["line"]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["line"] = [*args]
        return super().parse_args(ctx, args)


class _RunByDefault(click.Group):
    """`xla-run OPTIONS COMMAND` is `xla-run run OPTIONS COMMAND`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Subcommands, and the options of `run`, whose name may be left out."""
        found = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return found
        return [*found, *self.commands["run"].shell_complete(ctx, incomplete)]


def _timeout_options(command: Callable[..., None]) -> Callable[..., None]:
    """One flag per row of the timeout table."""
    for row in reversed(settings.TIMEOUTS):
        option = click.option(
            row.flag,
            row.field,
            type=Seconds(),
            default=None,
            help=f"{row.meaning} [{row.variable}; {settings.show_seconds(row.default_s)}]",
        )
        command = option(command)
    return command


@click.group(cls=_RunByDefault, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xla-run")
def cli() -> None:
    """Run a command as one process per device, and never leave one behind.

    xla-run [-n N] [OPTIONS] python train.py ARGS (see `xla-run run --help`)
    """


for each in (check, attach, job_commands.ps, job_commands.logs, job_commands.stack):
    cli.add_command(each)
for each in (job_commands.profile, job_commands.stop, compile_):
    cli.add_command(each)


# The first word that is no option of ours begins the command: all that follows is its own.
@cli.command(cls=_KeepsItsLine, context_settings={"allow_interspersed_args": False})
@click.option(*_NPROCS_NAMES, "nprocs", type=Count(), help="ranks per host; else run once")
@host_options.options
@host_options.batch_options
@host_options.node_options
@k8s_options.options
@ship_options.options
@click.option("-m", "is_module", is_flag=True, help="COMMAND is a module, as for python -m")
@click.option("--once", is_flag=True, help="run COMMAND once, as no rank (so without -n)")
@click.option("--job-id", default="", help="a name; a second job of that name is refused")
@restart_options.options(Seconds())
@click.option("--log-dir", default="", help="where JOB/attempt-N/rank-R.log goes")
@click.option(
    "--tee",
    "--local-ranks-filter",
    default="all",
    show_default=True,
    help="whose lines are shown: all, none, or ranks such as 0,2",
)
@click.option("--timestamps", is_flag=True, help="the time of day before every line")
@click.option("--stdin", "stdin_rank", type=int, help="the rank that reads this stdin [0 of 1]")
@click.option(
    "--env",
    "pairs",
    multiple=True,
    metavar="X=Y|X",
    help="a variable for every rank; X alone: one that must be set here",
)
@click.option("--env-file", "files", multiple=True, help="a file of lines X=Y, for every rank")
@click.option("--dry-run", is_flag=True, help="print what would run, and where, and do nothing")
@_timeout_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND")
@click.pass_context
def run(
    ctx: click.Context,
    words: Sequence[str],
    timestamps: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Run COMMAND in N ranks (with -n), here or on each of some hosts, or once here (without)."""
    on_k8s, asked = k8s_options.taken_from(options), host_options.taken_from(options)
    shipped = ship_options.taken_from(options)
    on_k8s.check()
    if on_k8s.k8s:
        shipped.refuse_with("--k8s", "the pods run what is in their image: copy the code into that")
        env = _variables(options["pairs"], options["files"], settings.environment())
        beside = k8s_options.beside(ctx, options, asked.given(), asked.batch, env)
        line = ctx.meta["line"]
        sys.exit(
            k8s_command.run(on_k8s, beside, line, words, _show, _hear_signals, dry_run=dry_run)
        )
    if on_k8s.detach:
        detached.check(asked, stdin_rank=options["stdin_rank"])
    spec = shipped.of(_job(words, asked, **options))
    if asked.batch.nodes and not asked.ray:
        line = ctx.meta["line"]
        script = slurm_batch.script(spec, asked.batch, line, words, is_shown=dry_run)
        click.echo(script.rstrip() if dry_run else slurm_batch.submit(script))
    elif dry_run:
        click.echo(preview.text(spec, words, asked.nodes.node_rank or 0))
    elif asked.nodes.are_several and asked.nodes.node_rank:
        sys.exit(_be_node(spec, asked.nodes.node_rank))
    elif on_k8s.detach:
        sys.exit(detached.run(spec, _hear_signals, run_on_screen, timestamps=timestamps))
    else:
        sys.exit(run_on_screen(spec, timestamps))


def _job(
    words: Sequence[str],
    asked: host_options.Asked,
    *,
    nprocs: int | None,
    is_module: bool,
    once: bool,
    job_id: str,
    max_restarts: int,
    log_dir: str,
    tee: str,
    stdin_rank: int | None,
    pairs: Sequence[str],
    files: Sequence[str],
    python: str,
    **limits_s: float | None,
) -> Job:
    """The job that a command and the options of `run` describe."""
    if once and nprocs is not None:
        raise UsageError("--once runs the command as no rank; leave out -n, or --once")
    environ = settings.environment()
    env = _variables(pairs, files, environ)
    merged = {**environ, **env, **({"XLA_RUN_LOG_DIR": log_dir} if log_dir else {})}
    if nprocs is not None:
        _refuse_inside_others(merged, is_node=asked.nodes.are_several)
    reached = host_options.reached(asked, nprocs, merged, once=once)
    going_on = asked.going_on
    named = bool(reached.hosts) and reached.way not in ("nodes", "ray")
    others, spares = going_on.shared_out(reached.hosts, are_named=named)
    if others:
        choice = devices.of_hosts(len(others), merged)
        ranks = sum(host.slots for host in others)
    else:
        choice, ranks = _devices(nprocs, merged)
    command = command_line.read(words, os.getcwd(), is_module=is_module)
    log_root, is_named = settings.log_root(merged)
    return Job(
        kind=command.kind,
        argv=list(command.argv),
        nprocs=ranks,
        device=choice.kind,
        headline="" if others else _headline(nprocs, ranks, choice, merged),
        job_id=job.check_id(job_id) if job_id else job.new_id(),
        state_dir=str(settings.state_dir(environ)),
        log_root=str(log_root),
        log_root_is_named=is_named,
        cwd=os.getcwd(),
        sys_path=[command.first_on_path] if command.first_on_path else [],
        env=env,
        tee=_teed(tee, ranks),
        max_restarts=max_restarts,
        max_preemptions=going_on.preemptions(asked.nodes.least or going_on.min_hosts),
        timeouts=settings.timeouts(merged, **limits_s),
        ranks_of_command=nprocs is not None or bool(others),
        needs_coordinator=not devices.meets_in_memory(choice.kind, 1, merged),
        stdin_rank=_stdin_rank(stdin_rank, ranks, bool(others)),
        hosts=others,
        way=reached.way,
        way_command=[*reached.command],
        python=python or ("" if reached.way == "ray" else sys.executable),
        spares=spares,
        least_hosts=asked.nodes.least or going_on.min_hosts,
        elastic_wait_s=going_on.elastic_wait_s(asked.nodes.least),
    )


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


def run_on_screen(spec: Job, timestamps: bool, before: Callable[..., None] | None = None) -> int:
    """Run a job, show what it says, pass signals on to it, and return its exit code.

    Args:
        before: called with each event before it is shown; must not block.
    """
    requests = Requests()
    if spec.way == "nodes":
        # Before anything is made of the job.
        settings.nodes_secret(settings.environment())
    _hear_signals(requests.ask)
    labels = spec.labels() if spec.hosts else None
    screen = Screen(spec.nprocs, timestamps=timestamps, labels=labels)
    try:
        stdin = 0 if spec.stdin_rank is not None else None
        show = in_turn(before, screen) if before is not None else screen
        ending = run_job(spec, b"", show, requests, stdin=stdin)
        screen.say_end(ending.warnings, ending.text)
    finally:
        screen.close()
    return ending.exit_code


def _be_node(spec: Job, number: int) -> int:
    """A node that comes to node 0; the exit code is that of the job."""
    secret = settings.taken_secret()
    # Other jobs need none of it, and start sooner.
    from torch_xdist.launcher.node.node import Node

    node = Node(spec, number, secret, lambda text: click.echo(cleaned(text), err=True))
    _hear_signals(node.asked)
    return node.run()


def _hear_signals(ask: Callable[[int], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Under nohup SIGHUP is ignored already, and stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda got, _: ask(got))


def _show(line: bytes) -> None:
    """Print what a pod has said, on a terminal without control characters."""
    with contextlib.suppress(OSError):
        is_screen = sys.stdout.isatty()
        click.echo(cleaned(line.decode(errors="replace")) if is_screen else line, nl=False)


def _devices(nprocs: int | None, environ: dict[str, str]) -> tuple[devices.Choice, int]:
    found = devices.probe()
    choice = devices.choose(environ, found)
    if nprocs is None:
        return choice, 1
    ranks = devices.local_ranks(nprocs or None, choice, environ, found)
    devices.refuse_whole_host(ranks, choice, environ)
    return choice, ranks


def _headline(
    nprocs: int | None, ranks: int, choice: devices.Choice, environ: dict[str, str]
) -> str:
    if nprocs is None:
        return f"1 process on 1 host, no rank (-n N makes ranks), {choice.kind}"
    return devices.start_line(ranks, 1, choice, environ)


def _refuse_inside_others(environ: dict[str, str], *, is_node: bool) -> None:
    """Ranks that another launcher has started, or whose hosts it counts, are not multiplied.

    Args:
        is_node: whether the options say already which of several hosts this is.

    Raises:
        UsageError: this process is one of those.
    """
    found = cluster.detect(environ)
    if isinstance(found, HostOfMany) and not is_node:
        raise UsageError(
            f"xla-run: this is host {found.host_index} of {found.hosts} of {found.launcher}: ranks "
            "of several hosts are joined by xmp.spawn in a script that is started on every host "
            "without -n, or by torchrun, srun or mpirun; or unset the variables that name the "
            "other hosts"
        )
    if isinstance(found, Rank):
        raise UsageError(
            f"xla-run: this is rank {found.rank} of {found.world_size} of {found.launcher} "
            "already, so -n would start ranks in every rank; start the command without xla-run"
        )


def _stdin_rank(asked: int | None, ranks: int, elsewhere: bool) -> int | None:
    if elsewhere:
        if asked is not None:
            raise UsageError(f"--stdin {asked}: a rank of another host cannot read this terminal")
        return None
    if asked is not None and not 0 <= asked < ranks:
        raise UsageError(f"--stdin {asked}: a rank from 0 to {ranks - 1} is needed")
    if asked is None and ranks > 1:
        return None
    return (asked or 0) if settings.has_stdin() else None


def _variables(
    pairs: Sequence[str], files: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables of --env-file, and of --env on top of them."""
    found: dict[str, str] = {}
    for name in files:
        found.update(_variables_of(Path(name)))
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if _VARIABLE.fullmatch(name) is None:
            raise UsageError(
                f"--env {pair!r}: the form X=Y is needed, with a variable's name for X; or X alone"
            )
        if not equals and name not in environ:
            raise UsageError(f"--env {name}: it is not set here; set it, or write {name}=VALUE")
        found[name] = value if equals else environ[name]
    return found


def _variables_of(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--env-file {path}: it cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ")
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or _VARIABLE.fullmatch(name.strip()) is None:
            raise UsageError(f"--env-file {path}, line {number}: the form X=Y is needed")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[name.strip()] = value
    return found


def _teed(tee: str, ranks: int) -> str:
    if tee in ("all", "none"):
        return tee
    words = tee.split(",")
    if not all(word.isdigit() and int(word) < ranks for word in words):
        raise UsageError(f"--tee {tee!r}: all, none, or ranks from 0 to {ranks - 1} such as 0,2")
    return tee

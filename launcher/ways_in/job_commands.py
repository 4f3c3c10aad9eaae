"""`xla-run ps | logs | stack | profile | stop`: look after jobs, here or `--on` a host.

What a running job is asked goes to its launcher, with the token that stands in its record.
"""

import bisect
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from torch_xdist.launcher.facts import host, log_folders, registry, settings
from torch_xdist.launcher.facts.errors import (
    AmbiguousJobError,
    HostError,
    LauncherError,
    UsageError,
)
from torch_xdist.launcher.facts.registry import Record
from torch_xdist.launcher.head import report
from torch_xdist.launcher.on_host.log_files import TIME_MARK
from torch_xdist.launcher.on_host.profiling.at_agent import MOST_S
from torch_xdist.launcher.viewing import profile as profiles
from torch_xdist.launcher.viewing import reader
from torch_xdist.launcher.viewing.on_option import OnHost
from torch_xdist.launcher.viewing.screen import cleaned
from torch_xdist.launcher.ways_in.param_types import JobName, Seconds, Since
from torch_xdist.system.process import Process

_STATUS_LIMIT_S = 3.0
_FOLLOW_S = 0.3
# Beyond the grace that the ranks were given: the launcher takes its time to end.
_STOP_MORE_S = 20.0
_PAGE_BYTES = 1 << 20


@click.command(cls=OnHost)
@click.option("-a", "--all", "everything", is_flag=True, help="also jobs that have ended")
@click.option("--json", "as_json", is_flag=True, help="one JSON object per job and line")
def ps(everything: bool, as_json: bool) -> None:
    """The jobs that run on this host."""
    found = [r for r in registry.records(_state_dir()) if everything or r["running"]]
    found.sort(key=lambda record: record.get("started", 0.0))
    with ThreadPoolExecutor(8) as threads:
        rows = list(threads.map(_row, found))
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    titles = ("JOB", "STATE", "RANKS", "UP", "STEP", "ATTEMPT", "FOR", "COMMAND")
    table = [titles, *(_cells(row) for row in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(titles))]
    for cells in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo(line.rstrip())


def _row(record: Record) -> dict[str, Any]:
    """What is known about a job; without what only its launcher knows, if that does not answer."""
    row = {
        "job": record["job"],
        "state": "running" if record["running"] else "ended",
        "exit_code": record.get("exit_code"),
        "ranks": record.get("ranks"),
        "attempt": record.get("attempt"),
        "started": record.get("started"),
        "ended": record.get("ended"),
        "log_dir": record.get("log_dir"),
        "argv": record.get("argv", []),
        "pid": record.get("pid"),
    }
    if not record["running"]:
        if "ended" not in record:
            row["state"] = "killed"
        return row
    if "address" not in record:
        return {**row, "state": "starting"}
    try:
        status = _ask(record, {"op": "status"}, _STATUS_LIMIT_S)
    except LauncherError as error:
        return {**row, "state": "silent", "why": str(error)}
    told = {name: status.get(name) for name in ("up", "steps", "standing", "pids")}
    return {**row, **told}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    state = row["state"]
    if row["exit_code"] is not None:
        state = f"ended ({row['exit_code']})"
    until = row["ended"] or time.time()
    lasted = f"{until - row['started']:.0f} s" if row["started"] else "?"
    return (
        row["job"],
        state,
        str(row["ranks"] if row["ranks"] is not None else "?"),
        str(row.get("up", "-" if row["state"] != "silent" else "?")),
        str(max(row.get("steps") or [0])) if row["state"] == "running" else "-",
        str(row["attempt"] if row["attempt"] is not None else "-"),
        lasted,
        " ".join(row["argv"])[:60],
    )


@click.command(cls=OnHost)
@click.argument("name", metavar="JOB", type=JobName())
@click.option("--rank", type=int, help="this rank alone")
@click.option("-f", "--follow", is_flag=True, help="go on until the job ends")
@click.option("-n", "--tail", type=click.IntRange(0), help="the last N lines of each rank")
@click.option(
    "--since",
    type=Since(),
    help="what was written in the last 10m, since 2031-05-17T08:30, or since 1764000000 (epoch)",
)
@click.option("--attempt", type=click.IntRange(0), help="of this attempt [the newest]")
def logs(
    name: str,
    rank: int | None,
    follow: bool,
    tail: int | None,
    since: float | None,
    attempt: int | None,
) -> None:
    """What the ranks of JOB have written (also after its end)."""
    if follow:
        reader.leave_with()
    record, folder = _log_folder(name, attempt, wait=follow)
    files = [_LogFile(path) for path in _log_paths(folder, rank)]
    for file in files:
        file.start(tail, since)
    ranks = record["ranks"] if record is not None and "ranks" in record else len(files)
    while True:
        # Asked first: what a job writes before it ends is read after it has.
        is_over = not follow or record is None or not _runs(record)
        for file in files:
            for text in file.pages(to_the_end=is_over):
                _show(file.rank, text, prefixed=ranks > 1 and rank is None)
        if is_over:
            break
        time.sleep(_FOLLOW_S)
        if attempt is None:
            folder = log_folders.attempts(folder.parent)[-1]
        # A rank has a log from its first word on.
        known = {file.path for file in files}
        files += [_LogFile(path) for path in _log_paths(folder, rank) if path not in known]
    if not files:
        raise UsageError(f"job {name}: no log of {f'rank {rank}' if rank is not None else 'it'}")


class _LogFile:
    """The log of one rank, read page by page from some place on, in whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rank = int(path.stem.removeprefix("rank-"))
        self._at = 0

    def start(self, tail: int | None, since_s: float | None) -> None:
        """Where to begin: so many lines before the end, at a time, or whichever is later."""
        if since_s is not None:
            self._at = self._offset_at(since_s)
        if tail is not None:
            self._at = max(self._at, self._offset_of_last(tail))

    def pages(self, *, to_the_end: bool) -> Iterator[bytes]:
        """What is new, cut behind an end of a line; `to_the_end` the rest as well."""
        with open(self.path, "rb") as file:
            file.seek(self._at)
            rest = b""
            while page := file.read(_PAGE_BYTES):
                whole, newline, rest = (rest + page).rpartition(b"\n")
                if newline:
                    self._at += len(whole) + 1
                    yield whole + newline
            if rest and to_the_end:
                self._at += len(rest)
                yield rest

    def _offset_at(self, time_s: float) -> int:
        """The beginning of the first line written at this time or later, to about a second."""
        try:
            data = self.path.with_suffix(".times").read_bytes()
        except OSError:
            return 0
        whole = len(data) - len(data) % TIME_MARK.size
        marks = list(TIME_MARK.iter_unpack(data[:whole]))
        # A mark holds for what follows it, until the next: the one before may be the right one.
        first = bisect.bisect_left([mark[0] for mark in marks], time_s)
        if first == len(marks):
            newest = self.path.stat().st_mtime
            return marks[-1][1] if marks and newest >= time_s else self.path.stat().st_size
        return int(marks[max(first - 1, 0)][1]) if marks else 0

    def _offset_of_last(self, lines: int) -> int:
        with open(self.path, "rb") as file:
            end = at = file.seek(0, 2)
            found = b""
            while at > 0 and found.rstrip(b"\n").count(b"\n") < lines:
                at = max(0, at - _PAGE_BYTES)
                file.seek(at)
                found = file.read(end - at)
        kept = found.splitlines(keepends=True)[-lines:] if lines else []
        return end - sum(map(len, kept))


@click.command(cls=OnHost)
@click.argument("name", metavar="JOB", type=JobName())
@click.option("--all-threads", "whole", is_flag=True, help="not the main thread alone")
def stack(name: str, whole: bool) -> None:
    """Where every rank of JOB is: its Python stack."""
    record = registry.find(_state_dir(), name)
    answer = _ask(record, {"op": "stack"})
    if answer.get("silent"):
        raise HostError(
            f"job {record['job']}: its launcher did not answer in time; it may be stopped (Ctrl-Z)"
        )
    for rank, text in sorted(answer["stacks"].items(), key=lambda item: int(item[0])):
        _echo(f"rank {rank}:\n{text.rstrip() if whole else report.main_stack(text)}\n")
    missing = sorted(set(range(record["ranks"])) - {int(rank) for rank in answer["stacks"]})
    for rank in missing:
        click.echo(f"rank {rank}: no stack; it is stopped, or runs no Python of ours\n")


@click.command(cls=profiles.Profile)
@click.argument("name", metavar="JOB", type=JobName())
@click.option("--seconds", type=Seconds(), default="5", show_default=True, help="for how long")
@click.option(
    "--ranks", default="", help=f"of which ranks, such as 0,2 [the first {profiles.MOST_RANKS}]"
)
@click.option("--out", default="", help="the folder that gets it [./profile-JOB]")
@click.option("--python-calls", is_flag=True, help="all calls of Python too, which slows it down")
@click.option("--json", "as_json", is_flag=True, help="print it, one JSON object per part")
def profile(
    name: str, seconds: float, ranks: str, out: str, python_calls: bool, as_json: bool
) -> None:
    """Take a profile of JOB while it runs, by JAX's profiler; the job goes on.

    \b
    xla-run profile JOB
    xla-run profile JOB --seconds 10 --ranks 0,8 --out ./profiles
    xla-run profile --on me@login JOB

    XProf and TensorBoard open the folder. A rank has a profile once it has used a device.
    """
    if not 0.0 < seconds <= MOST_S:
        raise UsageError(f"--seconds {seconds:g}: from above 0 to {MOST_S:.0f} are taken")
    asked = profiles.ranks_of(ranks)
    record = registry.find(_state_dir(), name)
    told = profiles.pieces(
        record["job"],
        lambda question: _ask(record, question),
        *(seconds, asked),
        python_calls=python_calls,
    )
    if as_json:
        profiles.print_pieces(told)
    else:
        profiles.file_pieces(record["job"], told, profiles.folder(record["job"], out))


@click.command(cls=OnHost)
@click.argument("name", metavar="JOB", type=JobName())
@click.option("--now", is_flag=True, help="without any grace")
@click.option("--no-wait", is_flag=True, help="return at once")
@click.option("--limit", "limit_s", type=Seconds(), help="wait at most so long, such as 90 or 2m")
def stop(name: str, now: bool, no_wait: bool, limit_s: float | None) -> None:
    """Stop JOB: SIGTERM to its ranks, then SIGKILL; wait until nothing of it is left."""
    record = registry.find(_state_dir(), name)
    with Process(record["pid"]) as launcher:
        if "address" in record:
            _ask(record, {"op": "stop", "signal": int(signal.SIGTERM), "now": now})
        else:  # it waits for its hosts, and answers nobody yet
            launcher.signal(signal.SIGTERM)
        if no_wait:
            click.echo(f"job {record['job']}: told to stop")
            return
        grace_s = float(record["graceful_s"])
        if not launcher.wait(limit_s if limit_s is not None else grace_s + _STOP_MORE_S):
            raise HostError(f"job {record['job']}: told to stop, but it still runs; try --now")
    click.echo(f"job {record['job']}: stopped")


def _state_dir() -> Path:
    return settings.state_dir(settings.environment())


def _ask(record: Record, question: dict[str, Any], limit_s: float | None = None) -> dict[str, Any]:
    # gRPC takes 0.2 s to import, and most commands do not need it.
    from torch_xdist.launcher import control

    if "address" not in record:
        raise UsageError(f"job {record['job']}: it is just starting; try again")
    more = {} if limit_s is None else {"limit_s": limit_s}
    return control.call(record["address"], record["token"], question, **more)


def _runs(record: Record) -> bool:
    with Process(record["pid"]) as launcher:
        return not launcher.ended()


def _log_folder(name: str, attempt: int | None, *, wait: bool) -> tuple[Record | None, Path]:
    """The log directory of one attempt of a job that is known, else of one whose logs are kept.

    With `wait` a job that is just starting may take its time to make it.
    """
    while True:
        record, folder = _job_folder(name)
        found = log_folders.attempts(folder) if folder.is_dir() else []
        attempts = {int(path.name.removeprefix("attempt-")): path for path in found}
        number = attempt if attempt is not None else max(attempts, default=0)
        if number in attempts:
            return record, attempts[number]
        if record is not None and record.get("hosts") and not attempts:
            raise UsageError(
                f"job {name!r}: its logs are on its {host.names_text(record['hosts'])}; their "
                "places there end with "
                f"{folder.name}/attempt-{number}; or give --log-dir a folder that all hosts share"
            )
        if attempts or not wait or record is None or not _runs(record):
            raise UsageError(
                f"job {name!r}: no logs of attempt {number} in {folder}; there: "
                f"{', '.join(map(str, sorted(attempts))) or 'none'}"
            )
        time.sleep(_FOLLOW_S)


def _job_folder(name: str) -> tuple[Record | None, Path]:
    root, _ = settings.log_root(settings.environment())
    try:
        record = registry.find(_state_dir(), name, ended=True)
    except AmbiguousJobError:
        raise
    except UsageError:
        kept = log_folders.kept(root, name)
        if not kept:
            raise
        return None, kept[-1]
    log_dir = record.get("log_dir", str(root / record["job"] / "attempt-0"))
    if not log_dir:
        raise UsageError(f"job {record['job']}: no logs of it are kept; it said so at its start")
    return record, Path(log_dir).parent


def _log_paths(folder: Path, rank: int | None) -> Sequence[Path]:
    found = folder.glob(f"rank-{'*' if rank is None else rank}.log")
    return sorted(found, key=lambda path: int(path.stem.removeprefix("rank-")))


def _show(rank: int, data: bytes, *, prefixed: bool) -> None:
    text = data.decode(errors="replace")
    if prefixed:
        text = "".join(f"[{rank}] {line}" for line in text.splitlines(keepends=True))
    _echo(text, nl=not text.endswith("\n"))


def _echo(text: str, *, nl: bool = True) -> None:
    """Print what ranks have said, on a terminal without their control characters."""
    click.echo(cleaned(text) if sys.stdout.isatty() else text, nl=nl)

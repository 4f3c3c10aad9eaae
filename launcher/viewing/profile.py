"""A profile of a running job, from another terminal or machine: asked for, fetched, filed.

Pieces come one by one, each as a JSON object, so that neither the job nor who asks holds more than
one. Where the job is on another machine the command there prints the pieces, and they are filed
here.
"""

import base64
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from torch_xdist.launcher.facts.errors import HostError, UsageError
from torch_xdist.launcher.viewing.elsewhere import Elsewhere
from torch_xdist.launcher.viewing.on_option import OnHost, begun, show_error

Piece = dict[str, Any]
Ask = Callable[[Piece], Piece]

# Without --ranks: so many of them.
MOST_RANKS = 8
# What a rank may need, beyond the time it is profiled for, to write down what it found.
_ANSWER_S = 30.0
_LOOK_S = 0.25
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Profile(OnHost):
    """Elsewhere it prints the pieces, which are filed here."""

    def elsewhere(self, ctx: click.Context, asked: Elsewhere) -> int:
        """See `OnHost`."""
        name, out = ctx.params["name"], ctx.params["out"]
        # A folder of this machine.
        words = [word for word in asked.words[1:] if not word.startswith("--out=")]
        command = begun(replace(asked, words=[asked.words[0], "--json", *words]))
        lines = command.lines(show_error)
        with contextlib.closing(lines):
            file_pieces(name, map(_piece, lines), folder(name, out))
            for _ in lines:  # it ends by itself now
                pass
        return command.exit_code()


def _piece(line: bytes) -> Piece:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise HostError(f"the command there says {line[:60]!r}, which is no piece of a profile")
    return found


def folder(name: str, out: str) -> Path:
    """Where the profiles of a job go."""
    return Path(out or f"profile-{name}")


def ranks_of(text: str) -> list[int] | None:
    """The ranks that --ranks names; None: the first ones.

    Raises:
        UsageError: it names none.
    """
    if not text:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--ranks {text!r}: ranks such as 0,2 are needed")
    return sorted({int(word) for word in words})


def pieces(
    job: str, ask: Ask, seconds: float, ranks: Sequence[int] | None, *, python_calls: bool
) -> Iterator[Piece]:
    """A profile of a job, as what `file_pieces` takes.

    Args:
        ask: puts a question to its head.

    Raises:
        UsageError: it has no such rank, or is being profiled already.
        HostError: its attempt ends meanwhile; some ranks gave no profile.
    """
    asked = {"seconds": seconds, "ranks": ranks, "most": MOST_RANKS, "python_calls": python_calls}
    begun = _answered(job, ask({"op": "profile", "do": "begin", **asked}))
    hosts = {int(rank): host for rank, host in begun["hosts"].items()}
    yield {"piece": "begin", "seconds": seconds, "ranks": sorted(hosts), "all": begun["all"]}
    try:
        yield from _fetched(job, ask, begun["id"], hosts, time.monotonic() + seconds + _ANSWER_S)
    finally:
        _let_go(ask, begun["id"])


def _let_go(ask: Ask, identity: str) -> None:
    # Where its launcher has gone, the profile has too.
    with contextlib.suppress(HostError):
        ask({"op": "profile", "do": "over", "id": identity})


def _fetched(
    job: str, ask: Ask, identity: str, hosts: dict[int, str], until_s: float
) -> Iterator[Piece]:
    """As ranks answer, those that did; at last those that did not."""
    waiting, failed = set(hosts), []

    def tell(**more: Any) -> Piece:
        try:
            return _answered(job, ask({"op": "profile", "id": identity, **more}))
        except HostError as error:
            raise HostError(
                f"job {job}: it has ended, or this attempt of it, before its profile was here "
                f"({error}); see `xla-run ps -a`"
            ) from error

    while waiting:
        answers = tell(do="look")["answers"]
        for rank in sorted(waiting & {int(number) for number in answers}):
            waiting.discard(rank)
            told = answers[str(rank)]
            if "why" in told:
                failed.append(rank)
                yield _refused(rank, hosts[rank], str(told["why"]))
            else:
                yield from _parts(tell, rank, hosts[rank], told)
        if time.monotonic() >= until_s:
            break
        if waiting:
            time.sleep(_LOOK_S)
    for rank in sorted(waiting):
        failed.append(rank)
        why = f"no answer within {_ANSWER_S:.0f} s of its end; see `xla-run stack {job}`"
        yield _refused(rank, hosts[rank], why)
    if failed:
        raise HostError(
            f"job {job}: no profile of rank{'s' * (len(failed) > 1)} "
            f"{', '.join(map(str, sorted(failed)))}; the job runs on"
        )


def _parts(tell: Callable[..., Piece], rank: int, host: str, told: Piece) -> Iterator[Piece]:
    at, size = 0, int(told["bytes"])
    facts = {"piece": "part", "rank": rank, "host": host, "of": size, "note": told["note"]}
    while at < size:
        data = tell(do="part", rank=rank, at=at).get("data", "")
        got = len(base64.b64decode(data))
        if not got:
            raise HostError(f"rank {rank}: its profile stopped coming after {at} of {size} bytes")
        yield {**facts, "at": at, "data": data}
        at += got


def _refused(rank: int, host: str, why: str) -> Piece:
    return {"piece": "refused", "rank": rank, "host": host, "why": why}


def _answered(job: str, answer: Piece) -> Piece:
    if "refused" in answer:
        raise UsageError(f"job {job}: {answer['refused']}")
    if answer.get("silent"):
        raise HostError(f"job {job}: its launcher did not answer in time; see `xla-run ps`")
    return answer


def file_pieces(job: str, told: Iterable[Piece], out: Path) -> None:
    """Write the profiles that come, as one run of XProf and TensorBoard, and say so.

    Raises:
        UsageError: it cannot be written to the folder.
        HostError: what comes is no profile.
    """
    run = out / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    files = _Files(run)
    try:
        for piece in told:
            _file(job, piece, files)
    except OSError as error:
        if isinstance(error, HostError):
            raise
        raise UsageError(
            f"--out {out}: the profile cannot be written there: {error.strerror or error}; "
            "name another folder"
        ) from error
    finally:
        files.close()
        if files.whole:
            click.echo(
                f"to look at it: xprof --logdir {out}, or tensorboard --logdir {out}; "
                "in Python: jax.profiler.ProfileData.from_file(FILE)"
            )


def _file(job: str, piece: Piece, files: "_Files") -> None:
    match piece.get("piece"):
        case "begin":
            ranks = piece["ranks"]
            shown = f"{len(ranks)} of its {piece['all']} ranks"
            if piece["all"] == len(ranks):
                shown = "all its ranks" if len(ranks) > 1 else "its rank"
            click.echo(f"job {job}: {piece['seconds']:g} s of {shown} are being profiled", err=True)
        case "refused":
            click.echo(
                f"rank {piece['rank']} (host {piece['host']}): no profile: {piece['why']}", err=True
            )
        case "part" if (path := files.add(piece)) is not None:
            note = f"; {piece['note']}" if piece["note"] else ""
            click.echo(f"rank {piece['rank']} (host {piece['host']}): {path}{note}")


class _Files:
    """The files of one run; what has not come whole is removed."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self.whole = 0

    def add(self, piece: Piece) -> Path | None:
        """Write a part; where it was the last one, the file."""
        data = base64.b64decode(piece["data"])
        if piece["at"] == 0:
            # What is before the first point of its name is the host for XProf.
            host = re.sub(r"[^A-Za-z0-9_-]", "-", str(piece["host"])) or "host"
            self._run.mkdir(parents=True, exist_ok=True)
            self._path = self._run / f"rank-{int(piece['rank'])}-{host}.xplane.pb"
            self._file = open(os.open(self._part(), _NEW, 0o666), "wb")  # noqa: SIM115
        if self._file is None or self._path is None or self._file.tell() != piece["at"]:
            raise HostError(f"a part of a profile at {piece['at']} does not follow the last one")
        self._file.write(data)
        if self._file.tell() < piece["of"]:
            return None
        self._file.close()
        self._file = None
        os.replace(self._part(), self._path)
        self.whole += 1
        return self._path

    def close(self) -> None:
        """Nothing is left of what is not whole."""
        if self._file is not None:
            self._file.close()
            self._part().unlink(missing_ok=True)
        for path in (self._run, *self._run.parents[:3]):
            try:
                path.rmdir()
            except OSError:  # something is in it, or it is not there
                break

    def _part(self) -> Path:
        assert self._path is not None
        return self._path.with_name(self._path.name + ".part")


def print_pieces(told: Iterable[Piece]) -> None:
    """One JSON object per piece and line, for the machine where they are filed."""
    for piece in told:
        click.echo(json.dumps(piece))

"""What is known about a rank: its progress, its failure, and the JSON both travel in.

A record is written by the worker or its agent, read by the controller, kept as one JSON object per
line. Nothing here reads a clock or the system.
"""

import json
import re
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch_xdist.launcher.errors import ProtocolError

KINDS = (
    "exception",
    "signal",
    "exit",
    "early_exit",
    "hang",
    "oom",
    "preempted",
    "host_lost",
    "launch",
    "pickle",
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rank has come, as its heartbeat says.

    state is "starting", "running", "compiling", "waiting" (in the collective named) or "left"
    (its function has returned). `recent` holds (sequence number, fingerprint) of the last
    collective programs, oldest first.
    """

    step: int = 0
    state: str = "starting"
    seq: int = 0
    collective: str = ""
    where: str = ""
    fingerprint: str = ""
    recent: tuple[tuple[int, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "recent": [list(pair) for pair in self.recent]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Progress":
        """Unknown keys are dropped, missing ones get their default.

        Raises:
            ProtocolError: a value has the wrong type.
        """
        known = _known(cls, data)
        try:
            known["recent"] = tuple((int(seq), str(mark)) for seq, mark in known.get("recent", ()))
            for name in ("step", "seq"):
                known[name] = int(known.get(name, 0))
            for name in ("state", "collective", "where", "fingerprint"):
                known[name] = str(known.get(name, "starting" if name == "state" else ""))
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"progress: {_short(data)} cannot be read: {error}") from error
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of one rank. `type`, `message`, `traceback` are those of the exception if any.

    `tail` holds the last lines of its log, `stacks` the stacks of ranks that are behind (rank as
    text -> stack), `secondary` is true where another rank's failure caused this one, for `reason`.
    """

    rank: int
    kind: str
    job: str = ""
    attempt: int = 0
    local_rank: int = 0
    host: str = ""
    pid: int = 0
    device: str = ""
    signal: int | None = None
    exit_code: int | None = None
    type: str = ""
    message: str = ""
    traceback: str = ""
    time: float = 0.0
    tail: tuple[str, ...] = ()
    step: int | None = None
    stacks: Mapping[str, str] | None = None
    secondary: bool = False
    reason: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps({**data, "tail": list(self.tail)}, ensure_ascii=True, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Failure":
        """Read what `to_json` wrote; unknown keys are dropped.

        Raises:
            ProtocolError: no JSON object, or no rank and kind in it.
        """
        try:
            data = json.loads(line)
            known = _known(cls, data)
            known["tail"] = tuple(str(row) for row in known.get("tail") or ())
            failure = cls(**known)
            if not isinstance(failure.rank, int):
                raise TypeError(f"rank {failure.rank!r} is no number")
        except (TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(
                f"failure record: {_short(line)} cannot be read: {error}"
            ) from error
        if failure.kind not in KINDS:
            raise ProtocolError(
                f"failure record: kind {failure.kind!r} is unknown; it is one of {', '.join(KINDS)}"
            )
        return failure


def signal_name(number: int) -> str:
    """ "SIGKILL" for 9; "signal 70" for a number without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 2", "ranks 0, 1, 3"; runs of four and more are folded: "ranks 0-6, 8"."""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) >= 4 else [str(rank) for rank in run]
    return "ranks " + ", ".join(parts)


def describe(failure: Failure) -> str:
    """The failure in one line: who, where, what; without traceback and log."""
    who = f"rank {failure.rank}"
    place = [f"host {failure.host}"] * bool(failure.host) + [f"pid {failure.pid}"] * bool(
        failure.pid
    )
    if place:
        who += f" ({', '.join(place)})"
    message = f": {failure.message}" if failure.message else ""
    return f"{who} {_what(failure)}{_when(failure)}{message}"


def _what(failure: Failure) -> str:
    if failure.kind == "oom":
        return "was killed for using too much memory (out of memory, SIGKILL)"
    if failure.kind == "signal":
        if failure.signal is None:
            return "was killed by a signal"
        verb = "was killed by" if failure.signal in (9, 15) else "died of"
        return f"{verb} {signal_name(failure.signal)} (signal {failure.signal})"
    if failure.kind == "exception":
        return f"raised {failure.type or 'an exception'}"
    if failure.kind == "exit":
        return f"exited with code {failure.exit_code}"
    words = {
        "early_exit": "finished early, while others still needed it",
        "hang": "did not go on",
        "preempted": "was preempted",
        "host_lost": "was lost with its host",
        "launch": "could not be started",
        "pickle": "has a function, argument or result that cannot be pickled",
    }
    return words[failure.kind]


def _when(failure: Failure) -> str:
    """The step; a rank that died is known by its last heartbeat only, and may have been further."""
    if not failure.step or failure.kind in ("early_exit", "hang", "launch", "pickle"):
        return ""
    return f" after step {failure.step}" + (" or later" if failure.kind != "exception" else "")


def fold(failures: Sequence[Failure]) -> list[tuple[list[int], Failure]]:
    """Group equal failures: ([ranks], the first of them), in order.

    Consequences of another failure differ in ranks, ports and times only: numbers do not count.
    Tracebacks are never compared: addresses in them differ between processes.
    """
    groups: dict[tuple[Any, ...], tuple[list[int], Failure]] = {}
    for failure in failures:
        message = re.sub(r"\d+", "#", failure.message) if failure.secondary else failure.message
        key = (failure.kind, failure.type, message, failure.signal, failure.exit_code)
        groups.setdefault(key, ([], failure))[0].append(failure.rank)
    return list(groups.values())


def _known(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(cls)}
    return {key: value for key, value in data.items() if key in names}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

"""What is told about a rank: its heartbeat, its failure, and the JSON both travel in.

A record is written by the rank or its agent, read by the head, kept as one JSON object per line.
Nothing here reads a clock or the system.
"""

import functools
import json
import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch_xdist.launcher.facts.errors import ProtocolError

# Programs with collectives that a heartbeat names, the newest.
MOST_RECENT = 16


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How far a rank has come, as it says every two seconds.

    state is "outside" (no step yet), "starting" (in the start of its device), "running",
    "compiling" or "waiting" (in the collective named). `seq` is the number of that collective.
    `waits_in` names the call where it is none of those, `waits_for` the ranks that it waits for,
    where that is known; `by_all` is true where every collective needs every rank. `recent` holds
    (seq, fingerprint) of the last programs with collectives, oldest first.
    """

    step: int = 0
    state: str = "outside"
    seq: int = 0
    collective: str = ""
    where: str = ""
    resumed: int | None = None
    waits_in: str = ""
    waits_for: tuple[int, ...] = ()
    by_all: bool = False
    recent: tuple[tuple[int, str], ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Heartbeat":
        """Unknown keys are dropped, missing ones get their default.

        Raises:
            ProtocolError: a value has the wrong type.
        """
        known = _known(cls, data)
        try:
            known["recent"] = tuple((int(seq), str(mark)) for seq, mark in known.get("recent", ()))
            known["waits_for"] = tuple(map(int, known.get("waits_for", ())))
            known["by_all"] = bool(known.get("by_all", False))
            for name in ("step", "seq"):
                known[name] = int(known.get(name, 0))
            if known.get("resumed") is not None:
                known["resumed"] = int(known["resumed"])
            for name in ("state", "collective", "where", "waits_in"):
                known[name] = str(known.get(name, cls.__dataclass_fields__[name].default))
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"heartbeat: {_short(data)} cannot be read: {error}") from error
        return cls(**known)


# Kinds of failures of a host with all its ranks: it is gone, or the cloud says that it will be.
OF_HOSTS = ("host_lost", "preempted")


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


def _known(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key in _names(cls)}


@functools.cache
def _names(cls: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields(cls))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

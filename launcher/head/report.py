"""The failure of a job in words, for people: the root cause first and whole, the rest folded."""

import re
from collections.abc import Sequence
from typing import Any

from torch_xdist.launcher.facts.records import OF_HOSTS, Failure, ranks_text, signal_name

_TAIL_LINES = 20
# Frames of the launcher below the user's, and what faulthandler adds to a crash.
_NOISE = re.compile(
    r'^\s*File "(.*[/\\]launcher[/\\]on_host[/\\](worker|nursery)\.py|<frozen runpy>)", line'
    r"|^Extension modules: |^Fatal Python error: |^Current thread's C stack trace|^  <truncated"
)


def failure_text(failures: Sequence[Failure], log_dir: str) -> str:
    """Who, what, the traceback or the last lines; then the others, and where the logs are."""
    root, others = failures[0], failures[1:]
    same = [ranks for ranks, first in fold(failures) if first is root]
    ranks = same[0] if same else [root.rank]
    head = describe(root, ranks)
    if len(ranks) > 1 and root.kind not in OF_HOSTS:
        head += f" (the same on {ranks_text(ranks)})"
    parts = [head]
    if root.traceback:
        parts.append(root.traceback.rstrip())
    elif root.tail:
        kept = [line for line in root.tail if not _NOISE.search(line)]
        lines = "\n".join(f"  {line}" for line in kept[-_TAIL_LINES:])
        parts.append(f"its last lines:\n{lines}")
    for rank, stack in sorted((root.stacks or {}).items()):
        parts.append(f"stack of rank {rank}:\n{main_stack(stack)}")
    rest = [failure for failure in others if failure.rank not in ranks]
    parts += [_folded(group, first) for group, first in fold(rest)]
    if log_dir:
        parts.append(f"logs: {log_dir}")
    return "\n".join(parts)


def main_stack(text: str) -> str:
    """The main thread's part of what faulthandler wrote, down to the user's outermost frame."""
    main = text.rstrip().split("\n\n")[-1]
    return "\n".join(line for line in main.splitlines() if not _NOISE.search(line))


def describe(failure: Failure, ranks: Sequence[int] = ()) -> str:
    """The failure in one line: who, where, what; without traceback and log.

    Args:
        ranks: all that a lost host had.
    """
    if failure.kind in OF_HOSTS:
        told = ranks_text(ranks or [failure.rank])
        what = "was lost" if failure.kind == "host_lost" else "is taken away"
        return f"host {failure.host} ({told}) {what}{_when(failure)}: {failure.message}"
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
    if failure.kind == "launch" and failure.step:
        return "was ended"  # with its agent, in the middle of its work
    words = {
        "early_exit": "finished early, while others still needed it",
        "hang": "did not go on",
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


def _folded(ranks: Sequence[int], first: Failure) -> str:
    if len(ranks) == 1 or first.kind in OF_HOSTS:
        text = describe(first, ranks)
    else:
        who, what = ranks_text(ranks), describe(first).split(") ", 1)[-1]
        text = f"{who}: {what}"
    first_line = text.splitlines()[0]
    return f"then {first_line}" + (f" ({first.reason})" if first.reason else "")

"""The failure of a job in words, for people: the root cause first and whole, the rest folded."""

import re
from collections.abc import Sequence

from torch_xdist.launcher.records import Failure, describe, fold, ranks_text

_TAIL_LINES = 20
# Frames of the launcher below the user's, and what faulthandler adds to a crash.
_NOISE = re.compile(
    r'^\s*File "(.*[/\\]launcher[/\\](worker|nursery)\.py|<frozen runpy>)", line'
    r"|^Extension modules: |^Fatal Python error: |^Current thread's C stack trace|^  <truncated"
)


def failure_text(failures: Sequence[Failure], log_dir: str) -> str:
    """Who, what, the traceback or the last lines; then the others, and where the logs are."""
    root, others = failures[0], failures[1:]
    same = [ranks for ranks, first in fold(failures) if first is root]
    ranks = same[0] if same else [root.rank]
    head = describe(root)
    if len(ranks) > 1:
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


def _folded(ranks: Sequence[int], first: Failure) -> str:
    if len(ranks) == 1:
        text = describe(first)
    else:
        who, what = ranks_text(ranks), describe(first).split(") ", 1)[-1]
        text = f"{who}: {what}"
    first_line = text.splitlines()[0]
    return f"then {first_line}" + (f" ({first.reason})" if first.reason else "")

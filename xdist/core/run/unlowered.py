"""Where operators ran on the CPU: XLA_FNTRACKER_FILE, and what PT_XLA_DEBUG tells at exit.

torch_xla writes the first and makes the second of it; its tools read both.
"""

import atexit
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

from torch_xdist import settings
from torch_xdist.core.run.analysis import append, tell
from torch_xdist.core.trace.user_frames import user_frames

_RULE = "=" * 80
_THIN = "-" * 80
# Of the functions that torch_xla tracks, these have this level.
_LEVEL = 3
_TAG = re.compile(r"\[TAG\s(.*)\sFrom Thread\s\d*\]")
_FRAME = re.compile(r".*\s\(.*:\d*\)")
# How often an operator ran on the CPU, by its name and the frames that called it.
_found: Counter[str] = Counter()


def note_unlowered(name: str) -> None:
    """An operator runs on the CPU."""
    now = settings.current()
    if now.debug:
        if not _found:
            atexit.register(tell_unlowered)
        _found[f'Unlowered Op: "{name}"\n{_frames()}'] += 1
    if now.tracker_file is None or now.tracker_level < _LEVEL:
        return
    if name in now.tracker_list or not now.tracker_list:
        tag = f"[TAG {name} From Thread {threading.get_ident()}]"
        end = "C++ Frames:\n*** End stack trace ***"
        append(now.tracker_file, f"{tag}\n{_frames()}\n{end}\n\n")


def _frames() -> str:
    return "Python Frames:\n" + "".join(f"  {frame}\n" for frame in user_frames())


def tell_unlowered() -> None:
    """Say how often which lines ran operators on the CPU, the most frequent first."""
    if _found:
        create_report(_found)
        _found.clear()


def process_frames(fname: str) -> None:
    """`create_report` of what XLA_FNTRACKER_FILE named."""
    with open(fname) as file:
        create_report(parse_frames(file))


def parse_frames(lines: Iterable[str]) -> dict[str, int]:
    """How often each operator ran from each place, in the lines of such a file."""
    found: Counter[str] = Counter()
    block: list[str] = []
    is_native = False
    for line in lines:
        if line.startswith("C++ Frames:"):
            is_native = True
        elif line.startswith("*** End stack trace ***"):
            is_native = False
        elif not is_native:
            told = parse_frame_content(line)
            if told:
                block.append(told)
            elif block:
                found["".join(block)] += 1
                block = []
    return found


def parse_frame_content(line: str) -> str | None:
    """What a line says, None where it is none of a report's."""
    if line.startswith("Python Frames:") or _FRAME.match(line):
        return line
    tag = _TAG.match(line)
    return f'Unlowered Op: "{tag[1]}"\n' if tag else None


def create_report(frames: Mapping[str, int]) -> None:
    """Print a summary, or append it to PT_XLA_DEBUG_FILE: the most frequent place first."""
    lines = [
        _RULE,
        "Unlowered Op usage summary (more of these ops, lower performance)",
        "Note: _local_scalar_dense typically indicates CPU context access",
        _THIN,
    ]
    for block, count in sorted(frames.items(), key=lambda item: -item[1]):
        lines += [f"FRAME (count={count}):", *block.splitlines(), ""]
    prefix = "" if settings.current().debug_file is not None else "pt-xla-profiler: "
    tell("".join(f"{prefix}{line}\n" for line in [*lines, _RULE]), sys.stderr)

#!/usr/bin/env python
"""What every thread of a process is doing: Python frames and native ones, alike threads together.

    .venv/bin/python scripts/dump_stacks.py PID

A rank of our launcher tells its Python frames itself; of other processes `py-spy` reads them where
it is installed. Native frames are gdb's. Attaching to a process needs its user's rights and, where
the kernel restricts it, root or `sysctl kernel.yama.ptrace_scope=0`. The process goes on.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from torch_xdist.launcher.facts.settings import STACK_SIGNAL

_LIMIT_S = 120
_THREAD_OF_GDB = re.compile(r"^Thread \d+ \((?P<name>.+)\):$")
_THREAD_OF_PYTHON = re.compile(r"^(?:Current thread|Thread) (?P<name>.+?)(?: \(most recent.*)?:?$")
_MEMORY_FILE = "/memfd:xla-run-stacks"


def python_frames(pid: int) -> str | None:
    """Each thread's Python frames; None where nobody can tell them."""
    memory = _memory_file(pid)
    if memory is not None:
        return _told(pid, memory)
    spy = shutil.which("py-spy")
    return None if spy is None else _output([spy, "dump", "--pid", str(pid)])


def _memory_file(pid: int) -> str | None:
    """Where a rank of our launcher writes its stacks."""
    for entry in os.scandir(f"/proc/{pid}/fd"):
        if os.readlink(entry.path).startswith(_MEMORY_FILE):
            return entry.path
    return None


def _told(pid: int, path: str, limit_s: float = 5.0) -> str | None:
    """What a rank writes when it is asked."""
    before = os.stat(path).st_size
    os.kill(pid, STACK_SIGNAL)
    deadline, size = time.monotonic() + limit_s, before
    while time.monotonic() < deadline:
        time.sleep(0.1)
        last, size = size, os.stat(path).st_size
        if before < size == last:
            break
    with open(path, "rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace") or None


def native_frames(pid: int) -> str | None:
    """Each thread's native frames; None without gdb."""
    gdb = shutil.which("gdb")
    if gdb is None:
        return None
    return _output([gdb, "-p", str(pid), "-batch", "-ex", "thread apply all bt", "-ex", "quit"])


def _output(command: list[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if ended.returncode:
        raise SystemExit(f"dump_stacks: {' '.join(command)}: {ended.stderr.strip()}")
    return ended.stdout


def merged(text: str) -> dict[str, list[str]]:
    """The threads of each stack, by its frames; the most frequent first."""
    found: dict[str, list[str]] = {}
    for name, frames in _stacks(text):
        found.setdefault(frames, []).append(name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _stacks(text: str) -> Iterator[tuple[str, str]]:
    """(thread, frames) of each stack of gdb, of py-spy or of faulthandler."""
    name, frames = "", []
    for line in [*text.splitlines(), ""]:
        head = _THREAD_OF_GDB.match(line) or _THREAD_OF_PYTHON.match(line)
        if head or not line.strip():
            if frames:
                yield name, "\n".join(frames)
            name, frames = (head["name"] if head else ""), []
        elif name and re.match(r"#\d+\s|\s+(?!Inferior )\S", line):
            frames.append(_alike(line))


def _alike(frame: str) -> str:
    """A frame without what differs between threads that do the same: addresses, arguments."""
    if not frame.startswith("#"):
        return frame
    return re.sub(r"0x[0-9a-f]+ in ", "", re.sub(r" \(.*\)(?= at | from |$)", " (...)", frame))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("pid", type=int, metavar="PID", help="the process to look at")
    pid = parser.parse_args().pid
    if not os.path.isdir(f"/proc/{pid}"):
        print(f"dump_stacks: there is no process {pid}", file=sys.stderr)
        return 1
    missing = 0
    for kind, frames, needed in (
        ("PYTHON", python_frames(pid), "py-spy (pip install py-spy)"),
        ("NATIVE", native_frames(pid), "gdb"),
    ):
        if frames is None:
            print(f"dump_stacks: no {kind.lower()} frames: install {needed}", file=sys.stderr)
            missing += 1
            continue
        for stack, threads in merged(frames).items():
            print(f"{kind} STACK (count={len(threads)}):\n{stack}\n\nLOCATIONS:")
            print("".join(f"  {thread}\n" for thread in threads))
    return 1 if missing == 2 else 0


if __name__ == "__main__":
    sys.exit(main())

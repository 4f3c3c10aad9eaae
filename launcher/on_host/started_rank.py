"""One rank as its agent knows it: its link, its process, its stacks, its memory."""

import contextlib
import json
import os
import re
import signal
import threading
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from torch_xdist.launcher.facts.settings import STACK_SIGNAL
from torch_xdist.system.frames import Link
from torch_xdist.system.process import Process

_MOST_STACK_BYTES = 1 << 16
_MOST_ERROR_BYTES = 1 << 20


@dataclass
class StartedRank:
    """A rank from the order to start it until its end has been told.

    `stacks` is a memory file into which its faulthandler writes when it gets STACK_SIGNAL.
    `program` says that it runs no Python of ours. `stopped`: we have sent it a signal. `ended`: its
    process is over; `told`: the head knows. `traceback`: what its log gets at its end.
    """

    rank: int
    link: Link
    stacks: int
    _: KW_ONLY
    program: bool = False
    error_file: str = ""
    process: Process | None = None
    ended: bool = False
    told: bool = False
    stopped: bool = False
    code: int = 0
    traceback: str = ""
    _stacks_from: int = field(default=0, repr=False)

    def signal(self, number: int) -> None:
        """Send a signal; from now on its end is our doing.

        A rank of Python gets it alone, so that its DataLoader workers live while it writes a
        checkpoint. A program gets it with its process group, as from a terminal: a shell that runs
        a script would not pass it on. SIGKILL always goes to the whole group.
        """
        if self.process is None or self.ended:
            return
        self.stopped = True
        if number == signal.SIGKILL:
            self.process.signal_group(number)
            return
        send = self.process.signal_group if self.program else self.process.signal
        send(number)
        # A stopped process takes no signal but SIGKILL until it is continued.
        send(signal.SIGCONT)

    def take_traceback(self) -> str:
        """That of its exception, once; "" afterwards."""
        text, self.traceback = self.traceback, ""
        return text

    def end_facts(self, oom: "OomWatch") -> dict[str, int | bool]:
        """How its process has ended."""
        killed = self.was_killed() and oom.killed()
        return {"code": self.code, "stopped": self.stopped, "oom": killed}

    def was_killed(self) -> bool:
        """Whether a SIGKILL ended it that was not ours."""
        return self.code == -signal.SIGKILL and not self.stopped

    def ask_stack(self) -> None:
        """Let it write the stacks of its threads, if it can: others would die of the signal."""
        self._stacks_from = os.fstat(self.stacks).st_size
        if self.process is not None and not self.ended and self.process.catches(STACK_SIGNAL):
            self.process.signal(STACK_SIGNAL)

    def read_stack(self) -> str:
        """What it wrote since it was asked; "" where it could not (stopped, or no Python)."""
        data = os.pread(self.stacks, _MOST_STACK_BYTES, self._stacks_from)
        return data.decode(errors="replace")

    def told_error(self) -> dict[str, str] | None:
        """The error of a program that failed, where it has written one into its error file."""
        failed = self.program and self.code > 0 and not self.stopped
        return _told_error(self.error_file) if failed else None

    def close(self) -> None:
        """Give back its descriptors."""
        self.link.close()
        os.close(self.stacks)
        if self.process is not None:
            self.process.close()


def _told_error(path: str, limit_s: float = 0.5) -> dict[str, str] | None:
    """What a program has written into its TORCHELASTIC_ERROR_FILE, as torch's @record does.

    In a thread: the disk may hang.
    """
    found: list[dict[str, str]] = []

    def read() -> None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            message = json.loads(Path(path).read_bytes()[:_MOST_ERROR_BYTES])["message"]
            kind, colon, text = str(message["message"]).partition(": ")
            trace = str(message.get("extraInfo", {}).get("py_callstack", ""))
            found.append({"type": kind, "message": text if colon else "", "traceback": trace})

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(limit_s)
    return found[0] if found else None


class OomWatch:
    """Counts the kernel's out-of-memory kills in a process's cgroup since the watch was made.

    Made before ranks start, and asked when one died of SIGKILL. Both cgroup versions are read;
    where there is none, nothing is ever called out of memory.
    """

    def __init__(self, pid: int | str = "self", root: Path = Path("/")) -> None:
        self._folder = _folder(root, pid)
        self._before = self._kills()

    def killed(self) -> bool:
        """Whether there was such a kill since the watch was made or last said so."""
        kills = self._kills()
        grown = kills > self._before
        self._before = kills
        return grown

    def _kills(self) -> int:
        for name in ("memory.events", "memory.oom_control"):
            match = re.search(r"^oom_kill (\d+)$", _read(self._folder, name), re.MULTILINE)
            if match:
                return int(match[1])
        return 0


def _folder(root: Path, pid: int | str) -> Path | None:
    """Where the memory files of a process's cgroup are, version 2 first; None without any."""
    try:
        lines = (root / "proc" / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    mount = root / "sys/fs/cgroup"
    rows = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    places = [mount / row[2].lstrip("/") for row in rows if row[1] == ""]
    places += [
        mount / "memory" / row[2].lstrip("/") for row in rows if "memory" in row[1].split(",")
    ]
    # Inside a container the path may be the host's: then the container's own root is mounted.
    for place in [*places, mount, mount / "memory"]:
        if any((place / name).exists() for name in ("memory.events", "memory.oom_control")):
            return place
    return None


def _read(folder: Path | None, name: str) -> str:
    try:
        return (folder / name).read_text() if folder is not None else ""
    except OSError:
        return ""

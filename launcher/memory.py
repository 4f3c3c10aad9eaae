"""Whether the kernel killed a rank for using too much memory, read from its cgroup.

A watch is made before ranks start and asked when one died of SIGKILL. Files are read in both
cgroup versions; where there are none, nothing is ever called out of memory.
"""

import re
from pathlib import Path


class OomWatch:
    """Counts the kernel's out-of-memory kills in a process's cgroup since the watch was made."""

    def __init__(self, pid: int | str = "self", root: Path = Path("/")) -> None:
        self._folder = _folder(root, pid)
        self._before = self._kills()

    def killed(self) -> bool:
        """Whether there was such a kill since the watch was made or last said so."""
        kills = self._kills()
        grown = kills > self._before
        self._before = kills
        return grown

    def limit_bytes(self) -> int | None:
        """The most memory the cgroup may use, or None without a limit."""
        for name in ("memory.max", "memory.limit_in_bytes"):
            word = _read(self._folder, name).strip()
            # Version 1 writes "no limit" as a number near 2**63.
            if word.isdigit() and int(word) < 1 << 62:
                return int(word)
        return None

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

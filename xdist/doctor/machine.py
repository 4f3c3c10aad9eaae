"""What this machine gives a process: cores, memory, shared memory, limits. Made for Linux."""

import os
import resource
import shutil
from pathlib import Path

_SHARED_MEMORY = "/dev/shm"


def machine(root: Path = Path("/")) -> dict[str, int | float | None]:
    """Sizes in bytes; None where the machine does not tell, or sets no limit."""
    memory = _meminfo(root)
    shared = _disk(root / _SHARED_MEMORY.lstrip("/"))
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cgroup_cores": _cgroup_cores(root),
        "memory_bytes": memory.get("MemTotal"),
        "free_memory_bytes": memory.get("MemAvailable"),
        "cgroup_memory_bytes": _cgroup(root, "memory.max", "memory/memory.limit_in_bytes"),
        "cgroup_used_bytes": _cgroup(root, "memory.current", "memory/memory.usage_in_bytes"),
        "shared_memory_bytes": shared[0],
        "free_shared_memory_bytes": shared[1],
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "processes": _limit(resource.RLIMIT_NPROC),
        "memory_maps": _number(root / "proc/sys/vm/max_map_count"),
    }


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _disk(path: Path) -> tuple[int | None, int | None]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None, None
    return usage.total, usage.free


def _meminfo(root: Path) -> dict[str, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    named = (line.split(":") for line in lines if line.endswith(" kB"))
    return {name: int(size.split()[0]) * 1024 for name, size in named}


def _cgroup(root: Path, second: str, first: str) -> int | None:
    """A number of this process' cgroup, version 2 first; None where there is no limit."""
    for folder in _folders(root):
        found = _number(folder / second)
        if found is not None:
            return found
    found = _number(root / "sys/fs/cgroup" / first)
    # Version 1 writes the largest number of pages for "no limit".
    return None if found is None or found >= 1 << 60 else found


def _cgroup_cores(root: Path) -> float | None:
    """How many cores' time this process' cgroup may use; None: all."""
    for folder in _folders(root):
        try:
            share, of = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        return None if share == "max" else int(share) / int(of)
    quota = _number(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _number(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _folders(root: Path) -> list[Path]:
    """The folder of this process' cgroup of version 2, and those it is in."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [mount]
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    folder = mount / own
    return [folder, *(f for f in folder.parents if f.is_relative_to(mount))]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None

"""What a host finds out about itself for `xla-run check`: plain data, as JSON carries it.

Each part is measured on a thread of its own and only waited for so long: a disk or a driver that
hangs costs its own answer, and is named.
"""

import contextlib
import importlib.metadata
import platform
import resource
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.on_host import host_facts
from torch_xdist.launcher.preflight import code_files, holders
from torch_xdist.system import tpu_host
from torch_xdist.system.masking import masked_text

# What ranks of one job must have alike, beside Python.
DISTRIBUTIONS = ("torch", "jax", "jaxlib", "libtpu", "torch-xdist", "numpy")
_PART_LIMIT_S = 6.0
_SHARED_MEMORY = Path("/dev/shm")

Question = Mapping[str, Any]


def facts(question: Question, limit_s: float = _PART_LIMIT_S) -> dict[str, Any]:
    """Everything, by part; `slow` and `failed` name the parts that gave no answer.

    Args:
        question: `device`, `alone`, `address` (as `host_facts.measure` takes them), `cwd`,
            `log_dir` ("": the launcher's own place), `code` (kind and name, or empty).
    """
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def measure(name: str, part: Callable[[Question], Any]) -> None:
        try:
            found[name] = part(question)
        except Exception as error:  # what a part cannot find out must not cost the others
            failed[name] = repr(error)

    threads = {
        name: threading.Thread(target=measure, args=(name, part), daemon=True)
        for name, part in _PARTS.items()
    }
    for thread in threads.values():
        thread.start()
    end_s = time.monotonic() + limit_s
    for thread in threads.values():
        thread.join(max(0.0, end_s - time.monotonic()))
    slow = [name for name in threads if name not in found and name not in failed]
    return {**found, "failed": dict(failed), "slow": slow}


def _host(question: Question) -> dict[str, Any]:
    return host_facts.measure(
        question["device"],
        alone=question["alone"],
        address=question["address"],
        keeps_logs=not question["log_dir"],
    ).to_json()


def _versions(question: Question) -> dict[str, str]:
    """By distribution, "" for one that is not installed."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        found[name] = ""
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _tpu(question: Question) -> list[str]:
    """What would keep a job from this host's TPU, besides who holds it."""
    return [*filter(None, [tpu_host.why_left(tpu_host.lock()), tpu_host.why_unfit()])]


def _disk(question: Question) -> dict[str, Any]:
    """Free bytes where the logs would go, and whether the directory of the ranks is there."""
    named = question["log_dir"]
    logs = Path(named) if named else settings.log_root(settings.environment())[0]
    there = next(path for path in (logs, *logs.parents) if path.exists())
    return {
        "logs": str(logs),
        "free_bytes": shutil.disk_usage(there).free,
        "cwd": question["cwd"],
        "has_cwd": Path(question["cwd"]).is_dir(),
    }


def _shared_memory(question: Question) -> dict[str, int]:
    usage = shutil.disk_usage(_SHARED_MEMORY)
    return {"total_bytes": usage.total, "free_bytes": usage.free}


def _limits(question: Question) -> dict[str, int | None]:
    """The soft limits (ulimit -n, -u, -l in bytes); None: unlimited."""
    asked = {
        "open_files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked_bytes": resource.RLIMIT_MEMLOCK,
    }
    soft = {name: resource.getrlimit(which)[0] for name, which in asked.items()}
    return {name: None if n == resource.RLIM_INFINITY else n for name, n in soft.items()}


def _proxies(question: Question) -> dict[str, str]:
    found = settings.proxies(settings.environment())
    return {name: masked_text(value) for name, value in found.items()}


def _holders(question: Question) -> list[dict[str, Any]]:
    return holders.holders()


def _code(question: Question) -> dict[str, Any]:
    asked = question["code"]
    return code_files.of(asked["kind"], asked["name"], question["cwd"]) if asked else {}


_PARTS: dict[str, Callable[[Question], Any]] = {
    "host": _host,
    "versions": _versions,
    "disk": _disk,
    "shared_memory": _shared_memory,
    "limits": _limits,
    "proxies": _proxies,
    "tpu": _tpu,
    "holders": _holders,
    "code": _code,
}

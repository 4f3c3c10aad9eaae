"""Who holds the accelerators of this host: processes with their command, as far as one may see.

A TPU chip has one owner, so whoever has its device open holds it. A GPU is shared, and monitors
keep it open too: there `nvidia-smi` says who computes on it.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_xdist.system import tpu_host

_SMI = (
    *("nvidia-smi", "--query-compute-apps=pid,used_memory,gpu_bus_id"),
    "--format=csv,noheader,nounits",
)
_SMI_LIMIT_S = 5.0


def holders(proc: Path = Path("/proc"), smi: tuple[str, ...] = _SMI) -> list[dict[str, Any]]:
    """Each with `kind` ("TPU" or "CUDA"), `device`, `pid`, `command`; on a GPU `used_mib`."""
    return [*_of_chips(proc), *_of_gpus(proc, smi)]


def _of_chips(proc: Path) -> Iterator[dict[str, Any]]:
    locked = tpu_host.lock(proc=proc)
    of_lock = [locked.holder] if locked is not None and locked.holder is not None else []
    for one in (*tpu_host.holders(proc), *of_lock):
        yield {"kind": "TPU", **one._asdict()}


def _of_gpus(proc: Path, smi: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    try:
        done = subprocess.run(smi, capture_output=True, text=True, timeout=_SMI_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in done.stdout.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 3 and words[0].isdecimal():
            pid, used = int(words[0]), words[1]
            yield {
                "kind": "CUDA",
                "device": f"GPU {words[2]}",
                "pid": pid,
                "command": tpu_host.command_of(proc, pid),
                "used_mib": int(used) if used.isdecimal() else None,
            }

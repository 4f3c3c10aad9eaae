"""Who holds the accelerators of this host: processes with their command, as far as one may see.

A TPU chip has one owner, so whoever has its device open holds it. A GPU is shared, and monitors
keep it open too: there `nvidia-smi` says who computes on it.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_xdist.system.masking import masked_text

_CHIP = re.compile(r"/dev/(?:accel\d+|vfio/\d+)\Z")
_SMI = (
    *("nvidia-smi", "--query-compute-apps=pid,used_memory,gpu_bus_id"),
    "--format=csv,noheader,nounits",
)
_SMI_LIMIT_S = 5.0
_MOST_CHARACTERS = 120


def holders(proc: Path = Path("/proc"), smi: tuple[str, ...] = _SMI) -> list[dict[str, Any]]:
    """Each with `kind` ("TPU" or "CUDA"), `device`, `pid`, `command`; on a GPU `used_mib`."""
    return [*_of_chips(proc), *_of_gpus(proc, smi)]


def _of_chips(proc: Path) -> Iterator[dict[str, Any]]:
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        opened = set()
        # Of other users' processes only root sees this.
        with contextlib.suppress(OSError):
            for fd in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    opened.add(os.readlink(fd))
        for device in sorted(filter(_CHIP.match, opened)):
            pid = int(folder.name)
            told = {"device": device, "pid": pid, "command": _command(proc, pid)}
            yield {"kind": "TPU", **told}


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
                "command": _command(proc, pid),
                "used_mib": int(used) if used.isdecimal() else None,
            }


def _command(proc: Path, pid: int) -> str:
    """As it was typed, shortened; that of another container cannot be read."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "not visible from here"
    return masked_text(" ".join(words).strip())[:_MOST_CHARACTERS]

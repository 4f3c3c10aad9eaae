"""The report as plain data. Imports neither torch nor jax: its checks run in processes apart."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from torch_xdist.doctor.machine import machine
from torch_xdist.releases import tested
from torch_xdist.system.masking import masked, masked_text

# What the device, the launcher and the libraries underneath read.
_PREFIXES = (
    *("XLA_", "XRT_", "XDIST_", "PJRT_", "PT_XLA_", "TPU_", "LIBTPU_", "CUDA_", "NVIDIA_"),
    *("JAX_", "TF_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "NCCL_", "GLOO_", "OMP_", "MKL_"),
    *("CPU_NUM_", "GPU_NUM_", "SLURM_", "OMPI_", "PMIX_", "GROUP_", "LOCAL_", "MASTER_"),
)
_NAMES = {"RANK", "WORLD_SIZE", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONWARNINGS"}
# What a check prints before its answer is other libraries' talk.
_MARK = "torch_xdist.doctor:"
_LAST_LINES = 8

_HOOKS = """
import json, torch, jax
from torch_xdist.releases import patches, probes
found = [
    {"hook": f.probe.path, "needed_for": f.probe.needed_for, "there": f.is_there,
     "otherwise": f.probe.otherwise, "when": f.probe.when}
    for f in probes.findings()
]
"""
_DEVICES = """
import json, jax, torch, torch_xla
ones = torch.ones(2, 2, device="xla")
works = (ones @ ones).sum().item() == 8
kinds = [str(device.device_kind) for device in jax.local_devices()]
found = {"platform": jax.default_backend(), "kinds": kinds, "works": works}
"""
_TRANSPORT = """
import json
from torch_xdist import settings, world
here = world.current()
found = {"transport": world.transport() if here.world_size > 1 else "none: one rank",
         "rank": here.rank, "world_size": here.world_size, "launcher": here.launcher or "none"}
"""
# The device is asked for by one rank: the others of a job would have to come to meet it.
_OF_JOBS = ("XLA_RUN_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMIX_")
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def report(*, timeout_s: float = 120.0) -> dict[str, Any]:
    """Everything, in the order in which it is read."""
    releases = tested.installed()
    cell = tested.cell_of(releases)
    return {
        "releases": releases,
        "platform": platform.platform(),
        "tested": None if cell is None else cell.name,
        "hooks": checked(_HOOKS, timeout_s),
        "devices": checked(_DEVICES, timeout_s, alone=True),
        "ranks": checked(_TRANSPORT, timeout_s),
        "variables": variables(os.environ),
        "machine": machine(),
    }


def is_fit(found: Mapping[str, Any]) -> bool:
    """Whether no hook is missing that is needed, and the device computes."""
    hooks, devices = found["hooks"], found["devices"]
    if "error" in hooks or "error" in devices:
        return False
    return not missing(hooks["found"]) and bool(devices["found"]["works"])


def missing(hooks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The hooks that are needed and not there."""
    return [hook for hook in hooks if not hook["there"] and not hook["otherwise"]]


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what this package does, secrets masked."""
    return {
        name: masked(name, value)
        for name, value in sorted(environ.items())
        if name in _NAMES or name.startswith(_PREFIXES)
    }


def checked(code: str, timeout_s: float, *, alone: bool = False) -> dict[str, Any]:
    """What `code` leaves in `found`, as {"found": ...}, else {"error": what it said at last}."""
    environ = dict(os.environ)
    if alone:
        kept = {k: v for k, v in environ.items() if not k.startswith(_OF_JOBS)}
        environ = kept | _ALONE if "RANK" in environ else kept
    ends = f"\nprint({_MARK!r} + json.dumps(found))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code + ends],
            env=environ, capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"it did not end within {timeout_s:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return {"found": json.loads(line.removeprefix(_MARK))}
    said = [line for line in done.stderr.splitlines() if line.strip()]
    last = masked_text("\n".join(said[-_LAST_LINES:]))
    return {"error": last or f"it ended with code {done.returncode} and said nothing"}

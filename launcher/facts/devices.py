"""Which devices a host has, which of them a rank gets, and how that is written for its runtime.

`probe` looks at the host; all else is pure. TPU topology is in `tpu.py`. Nothing here imports jax:
a device counts only where its plugin is installed, which is found without loading it.
"""

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torch_xdist.launcher.facts import tpu
from torch_xdist.launcher.facts.errors import DevicesError, UsageError
from torch_xdist.launcher.facts.settings import Environ, asked_device, asked_num_devices, text
from torch_xdist.system import tpu_host

_PLUGINS = {
    "TPU": ("libtpu",),
    "CUDA": ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_plugins.xla_cuda13"),
}
_PLUGIN_TO_INSTALL = {"TPU": "jax[tpu]", "CUDA": "jax[cuda13]"}
_TRANSPORT = {"TPU": "ICI", "CUDA": "NCCL", "CPU": "gloo"}
KINDS = tuple(_TRANSPORT)


@dataclass(frozen=True, slots=True)
class Found:
    """The accelerators of a host and whether JAX's plugin for them is installed."""

    counts: Mapping[str, int]
    plugins: Mapping[str, bool]

    def usable(self, kind: str) -> bool:
        return self.counts.get(kind, 0) > 0 and self.plugins.get(kind, False)


@dataclass(frozen=True, slots=True)
class Choice:
    """The device kind of a job ("TPU", "CUDA" or "CPU"), and why, for the line at start."""

    kind: str
    why: str


def choose(environ: Environ, found: Found) -> Choice:
    """The kind asked for by PJRT_DEVICE (or an older name), else the best there is.

    Raises:
        UsageError: PJRT_DEVICE names something else.
        DevicesError: what it names is not there.
    """
    asked = asked_device(environ)
    kind = "CUDA" if asked in ("GPU", "ROCM") else asked
    if not kind:
        return _best(found)
    if kind not in _TRANSPORT:
        raise UsageError(
            f"PJRT_DEVICE={text(environ, 'PJRT_DEVICE')!r} is unknown; "
            "it is TPU, CUDA, GPU or CPU, or unset for the best there is"
        )
    if kind != "CPU" and not found.usable(kind):
        raise DevicesError(f"PJRT_DEVICE={asked}: {_missing(found, kind)}")
    return Choice(kind, f"PJRT_DEVICE={asked}" if text(environ, "PJRT_DEVICE") else "asked for")


def local_ranks(nprocs: int | None, choice: Choice, environ: Environ, found: Found) -> int:
    """How many ranks this host runs: nprocs, else *_NUM_DEVICES, else one per accelerator (CPU: 1).

    Raises:
        UsageError: nprocs is below 1.
        DevicesError: more ranks than accelerators.
    """
    if nprocs is not None and nprocs < 1:
        raise UsageError(f"nprocs={nprocs}: a whole number from 1 up is needed, or None for all")
    limit = asked_num_devices(environ, choice.kind)
    if choice.kind == "CPU":
        return nprocs or limit or 1
    there = len(cuda_devices(environ, found.counts[choice.kind])) if choice.kind == "CUDA" else None
    have = found.counts[choice.kind] if there is None else there
    ranks = nprocs or min(limit or have, have)
    if ranks > have or ranks == 0:
        noun = "GPUs" if choice.kind == "CUDA" else "TPU chips"
        raise DevicesError(
            f"{ranks or 'some'} ranks asked for, but this host has {have} visible {noun}; "
            f"use nprocs={max(have, 1)} or less, or PJRT_DEVICE=CPU"
        )
    return ranks


def refuse_whole_host(ranks: int, choice: Choice, environ: Environ) -> None:
    """Nothing, unless these ranks are all the chips of one of several hosts of a TPU slice.

    They would wait for those of the other hosts, which nobody has told of them.

    Raises:
        UsageError: they are.
        DevicesError: nothing says which slice this is.
    """
    if choice.kind != "TPU":
        return
    whole = tpu.read_slice(environ)
    if len(whole.addresses) > 1 and ranks == whole.chips_per_host:
        raise UsageError(
            f"this is host {whole.worker_id} of {len(whole.addresses)} of TPU slice "
            f"{whole.accelerator_type}: its ranks are joined by `xla-run --tpu NAME`, or by "
            "xmp.spawn in a script that is started on every host; or start fewer ranks here"
        )


def start_line(ranks: int, hosts: int, choice: Choice, environ: Environ) -> str:
    """The one line at start: "8 ranks on 1 host, CPU (shared memory)"."""
    plural = "rank" if ranks == 1 else "ranks"
    places = "host" if hosts == 1 else "hosts"
    why = "" if choice.why.startswith("PJRT_DEVICE") or not choice.why else f"; {choice.why}"
    way = f" ({_transport(choice.kind, hosts, environ)})" if ranks > 1 or hosts > 1 else ""
    return f"{ranks} {plural} on {hosts} {places}, {choice.kind}{way}{why}"


def meets_in_memory(kind: str, hosts: int, environ: Environ) -> bool:
    """Whether ranks exchange through shared memory; `torch_xdist.world.transport` decides alike."""
    asked = text(environ, "XDIST_TRANSPORT").lower()
    return asked == "host" if asked else hosts == 1 and kind == "CPU"


def _transport(kind: str, hosts: int, environ: Environ) -> str:
    if meets_in_memory(kind, hosts, environ):
        return "shared memory"
    asked = text(environ, "XDIST_TRANSPORT").lower()
    by_sockets = asked == "hosts" or (not asked and hosts > 1)
    return "TCP" if kind == "CPU" and by_sockets else _TRANSPORT[kind]


def device_variables(
    choice: Choice,
    local_rank: int,
    local_world_size: int,
    environ: Environ,
    whole: tpu.Slice | None = None,
) -> dict[str, str]:
    """What a rank's environment says about its device; the rest of the environment stays.

    Args:
        whole: the slice of a TPU host, to be read once for all ranks; None: it is read here.
    """
    names = {"PJRT_DEVICE": choice.kind}
    if choice.kind == "CUDA":
        there = cuda_devices(environ, local_rank + 1)
        return {**names, "CUDA_VISIBLE_DEVICES": there[local_rank]}
    if choice.kind == "TPU":
        whole = whole or tpu.read_slice(environ)
        return {**names, **tpu.rank_variables(whole, local_rank, local_world_size)}
    return names


def missing_variables(
    local_rank: int, local_world_size: int, environ: Environ, found: Found
) -> dict[str, str]:
    """What a rank that another launcher started still lacks: its kind, and its own device alone.

    The kind, where PJRT_DEVICE is unset: ranks meet by it. Nothing on the CPU; no device where that
    launcher has restricted it to one already.

    Raises:
        UsageError, DevicesError: as `choose`; or fewer GPUs than ranks.
    """
    if local_world_size == 1 and asked_device(environ):
        return {}
    choice = choose(environ, found)
    kind = {} if choice.kind == "CPU" or asked_device(environ) else {"PJRT_DEVICE": choice.kind}
    if local_world_size == 1:
        return kind
    if choice.kind == "TPU" and not text(environ, "TPU_VISIBLE_CHIPS"):
        return device_variables(choice, local_rank, local_world_size, environ)
    there = cuda_devices(environ, found.counts["CUDA"]) if choice.kind == "CUDA" else []
    if len(there) <= 1:
        return kind
    if local_world_size > len(there):
        raise DevicesError(
            f"{local_world_size} ranks on this host, but it has {len(there)} visible GPUs; "
            "start fewer, or set PJRT_DEVICE=CPU"
        )
    return {**kind, "CUDA_VISIBLE_DEVICES": there[local_rank]}


def cuda_devices(environ: Environ, count: int) -> list[str]:
    """The GPUs that this process may share out, as CUDA names them: its own list, else 0 .. n-1.

    CUDA stops reading its list at the first -1, and an empty list hides every GPU.
    """
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return [str(index) for index in range(count)]
    names: list[str] = []
    for name in environ["CUDA_VISIBLE_DEVICES"].split(","):
        if not name.strip() or name.strip().startswith("-"):
            break
        names.append(name.strip())
    return names


def split_cores(cores: Sequence[int], local_world_size: int) -> list[tuple[int, ...]]:
    """The cores of each local rank: neighbours stay together, sizes differ by at most one.

    With more ranks than cores every rank gets all cores: the kernel shares them better than a
    fixed split would.
    """
    if local_world_size > len(cores):
        return [tuple(cores)] * local_world_size
    size, extra = divmod(len(cores), local_world_size)
    starts = [rank * size + min(rank, extra) for rank in range(local_world_size + 1)]
    return [tuple(cores[first:last]) for first, last in pairwise(starts)]


def thread_variables(
    cores: Sequence[int], local_world_size: int, environ: Environ
) -> dict[str, str]:
    """OMP_NUM_THREADS for a rank: the user's own, else its share of the cores, at least 1."""
    if text(environ, "OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(cores) // local_world_size))}


def own_cores(system: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """The cores this process may run on; those of one package and one core are neighbours."""
    return sorted(os.sched_getaffinity(0), key=lambda core: (*_place(system, core), core))


def probe(devices: Path = Path("/dev"), pci: Path = Path("/sys/bus/pci/devices")) -> Found:
    """Count this host's accelerators without touching them."""
    gpus = sum(1 for path in _listing(devices) if re.fullmatch(r"nvidia\d+", path.name))
    chips = sum(1 for path in _listing(pci) if tpu_host.is_chip(path))
    plugins = {kind: any(map(_installed, names)) for kind, names in _PLUGINS.items()}
    return Found({"TPU": chips, "CUDA": gpus}, plugins)


def _best(found: Found) -> Choice:
    for kind in ("TPU", "CUDA"):
        if found.usable(kind):
            return Choice(kind, "the best there is (PJRT_DEVICE is unset)")
    unused = [_missing(found, kind) for kind in ("TPU", "CUDA") if found.counts.get(kind, 0)]
    return Choice("CPU", "; ".join(unused))


def _missing(found: Found, kind: str) -> str:
    noun = "TPU chip" if kind == "TPU" else "GPU"
    count = found.counts.get(kind, 0)
    if not count:
        return f"this host has no {noun}; use PJRT_DEVICE=CPU, or unset it for the best there is"
    return f"this host has {count} {noun}{'s' * (count > 1)}, but JAX has no plugin for it; " + (
        f"install {_PLUGIN_TO_INSTALL[kind]}"
    )


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _place(system: Path, core: int) -> tuple[int, int]:
    topology = system / f"cpu{core}" / "topology"
    package, number = _word(topology / "physical_package_id"), _word(topology / "core_id")
    return (int(package) if package.isdigit() else 0, int(number) if number.isdigit() else core)


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def of_hosts(hosts: int, environ: Environ) -> Choice:
    """The kind that PJRT_DEVICE asks for, "" where so many other hosts shall say what they have.

    Raises:
        UsageError: it is none, or XDIST_TRANSPORT asks several hosts to share memory.
    """
    if hosts > 1 and text(environ, "XDIST_TRANSPORT").lower() == "host":
        raise UsageError(f"XDIST_TRANSPORT=host: {hosts} hosts share no memory; unset it")
    asked = asked_device(environ)
    if asked in ("", "CPU"):
        return Choice(asked, "")
    # Whether they have it is theirs to say.
    there = Found(dict.fromkeys(KINDS, 1), dict.fromkeys(KINDS, True))
    return choose(environ, there)

"""The variables that give each rank its TPU chip, computed from a slice's metadata.

One rank has one chip. Everything but `read_slice` is pure. Sizes are grids of chips (x, y, z).
Source: the variables of libtpu as JAX's and torch_xla's multi-process set-ups use them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch_xdist.launcher.facts.errors import DevicesError
from torch_xdist.launcher.facts.settings import Environ, flag, integer, text

Grid = tuple[int, int, int]

BASE_PORT = 8476
# The name of a slice counts cores up to v5p (two per chip), and chips from v5e on.
_CORES_PER_CHIP = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "v5litepod": 1, "v5e": 1, "v6e": 1}
_FLAT = ("v2", "v3", "v5litepod", "v5e", "v6e")
_FLAT_GRIDS: dict[int, Grid] = {
    1: (1, 1, 1),
    4: (2, 2, 1),
    8: (2, 4, 1),
    16: (4, 4, 1),
    32: (4, 8, 1),
    64: (8, 8, 1),
    128: (8, 16, 1),
    256: (16, 16, 1),
    512: (16, 32, 1),
    1024: (32, 32, 1),
}
_CUBE_GRIDS: dict[int, Grid] = {
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (2, 2, 4),
    32: (2, 4, 4),
    64: (4, 4, 4),
    128: (4, 4, 8),
    256: (4, 8, 8),
    512: (8, 8, 8),
    768: (8, 8, 12),
    1024: (8, 8, 16),
    2048: (8, 16, 16),
}
# Part of one host: chips 0 .. n-1 of it, as grids that are wired to each other.
_PART_GRIDS: dict[int, Grid] = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1)}


@dataclass(frozen=True, slots=True)
class Slice:
    """A TPU slice as one of its hosts knows it.

    `host_grid` are the chips of one host, `hosts_grid` how many hosts lie along each axis,
    `addresses` the hosts in the order of their `worker_id`.
    """

    accelerator_type: str
    host_grid: Grid
    hosts_grid: Grid
    worker_id: int = 0
    addresses: tuple[str, ...] = ("localhost",)

    @property
    def chips_per_host(self) -> int:
        return prod(self.host_grid)


def slice_of(
    accelerator_type: str,
    worker_id: int = 0,
    addresses: Sequence[str] = (),
    host_bounds: str = "",
    chips_per_host: str = "",
) -> Slice:
    """The slice of a name such as "v4-32", its grids computed where the bounds are not given.

    Raises:
        DevicesError: the name or a bound is unknown, or hosts and addresses do not match.
    """
    if host_bounds and chips_per_host:
        host_grid, hosts_grid = parse_grid(chips_per_host), parse_grid(host_bounds)
    else:
        host_grid, hosts_grid = _grids(accelerator_type)
    hosts = prod(hosts_grid)
    named = tuple(addresses) if len(addresses) > 1 or hosts > 1 else ("localhost",)
    if len(named) != hosts:
        raise DevicesError(
            f"TPU slice {accelerator_type}: {hosts} hosts, but {len(named)} addresses; "
            "TPU_WORKER_HOSTNAMES must name every host of the slice, in order"
        )
    if not 0 <= worker_id < hosts:
        raise DevicesError(
            f"TPU slice {accelerator_type}: worker {worker_id} of {hosts} hosts; "
            f"TPU_WORKER_ID must be 0 to {hosts - 1}"
        )
    return Slice(accelerator_type, host_grid, hosts_grid, worker_id, named)


def rank_variables(
    whole: Slice, local_rank: int, local_world_size: int, base_port: int = BASE_PORT
) -> dict[str, str]:
    """The variables of one rank; a host's ranks take its chips 0, 1, ... in order.

    All chips of every host make the whole slice. Fewer (1, 2 or 4 ranks) make a sub-slice of one
    host; several hosts then cannot be joined.

    Raises:
        DevicesError: more ranks than chips, or a number of ranks that makes no sub-slice.
    """
    grid = _grid_of_ranks(whole, local_world_size)
    joined = local_world_size == whole.chips_per_host
    addresses = whole.addresses if joined else ("localhost",)
    worker_id = whole.worker_id if joined else 0
    ports = range(base_port, base_port + local_world_size)
    return {
        "TPU_VISIBLE_CHIPS": str(local_rank),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": show_grid(grid),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{host}:{port}" for host in addresses for port in ports),
        "TPU_PROCESS_PORT": str(base_port + local_rank),
        "CLOUD_TPU_TASK_ID": str(worker_id * local_world_size + local_rank),
    }


def parse_grid(bounds: str) -> Grid:
    """(2, 2, 1) from "2,2,1" or "2x2x1"; missing axes are 1.

    Raises:
        DevicesError: no grid of one to three positive sizes.
    """
    parts = re.split(r"[,x]", bounds.strip().strip("'\""))
    if not 1 <= len(parts) <= 3 or not all(part.isdigit() and int(part) for part in parts):
        raise DevicesError(
            f"TPU bounds {bounds!r}: three positive sizes such as 2,2,1 are needed; "
            "correct TPU_PROCESS_BOUNDS or TPU_CHIPS_PER_PROCESS_BOUNDS"
        )
    sizes = [int(part) for part in parts] + [1, 1]
    return sizes[0], sizes[1], sizes[2]


def show_grid(grid: Grid) -> str:
    """ "2,2,1" as libtpu reads it."""
    return ",".join(map(str, grid))


def slice_from_environ(environ: Environ) -> Slice | None:
    """The slice as GKE and torch_xla's users name it in variables, or None without a type."""
    name = text(environ, "TPU_ACCELERATOR_TYPE") or text(environ, "ACCELERATOR_TYPE")
    if not name:
        return None
    bounds = text(environ, "TPU_PROCESS_BOUNDS") or text(environ, "TPU_HOST_BOUNDS")
    chips = text(environ, "TPU_CHIPS_PER_PROCESS_BOUNDS")
    worker = integer(environ, "CLOUD_TPU_TASK_ID")
    if worker is None:
        worker = integer(environ, "TPU_WORKER_ID") or integer(environ, "WORKER_ID") or 0
    return slice_of(
        name,
        worker,
        _hosts(text(environ, "TPU_WORKER_HOSTNAMES")),
        bounds,
        chips or text(environ, "TPU_CHIPS_PER_HOST_BOUNDS"),
    )


def slice_from_metadata(tpu_env: str, endpoints: str) -> Slice:
    """The slice from the attributes `tpu-env` (NAME: 'value' lines) and `worker-network-endpoints`.

    Raises:
        DevicesError: no accelerator type in it.
    """
    # What it imports to ask a server takes 30 ms of every process of a launch.
    from torch_xdist.system import tpu_metadata

    rows = tpu_metadata.rows(tpu_env)
    if not rows.get("ACCELERATOR_TYPE"):
        raise DevicesError(
            f"TPU metadata: no ACCELERATOR_TYPE among {', '.join(sorted(rows)) or 'nothing'}; "
            "set TPU_ACCELERATOR_TYPE and TPU_SKIP_MDS_QUERY=1"
        )
    worker = rows.get("WORKER_ID", "0")
    return slice_of(
        rows["ACCELERATOR_TYPE"],
        int(worker) if worker.isdigit() else 0,
        tpu_metadata.addresses(endpoints),
        rows.get("TPU_PROCESS_BOUNDS") or rows.get("HOST_BOUNDS", ""),
        rows.get("TPU_CHIPS_PER_PROCESS_BOUNDS") or rows.get("CHIPS_PER_HOST_BOUNDS", ""),
    )


def read_slice(environ: Environ, limit_s: float = 3.0) -> Slice:
    """The slice this host belongs to, from the variables, else from the metadata server.

    Raises:
        DevicesError: neither says it.
    """
    named = slice_from_environ(environ)
    if named is not None:
        return named
    if flag(environ, "TPU_SKIP_MDS_QUERY"):
        raise DevicesError("TPU_SKIP_MDS_QUERY is set, but TPU_ACCELERATOR_TYPE is not; set both")
    from torch_xdist.system import tpu_metadata

    try:
        tpu_env = tpu_metadata.attribute("tpu-env", limit_s)
        endpoints = tpu_metadata.attribute("worker-network-endpoints", limit_s)
        return slice_from_metadata(tpu_env, endpoints)
    except OSError as error:
        raise DevicesError(
            f"TPU metadata: the server did not answer ({error}); "
            "set TPU_ACCELERATOR_TYPE, TPU_WORKER_ID and TPU_WORKER_HOSTNAMES"
        ) from error


def _grids(accelerator_type: str) -> tuple[Grid, Grid]:
    """(chips of one host, hosts along each axis) of a slice by its name."""
    match = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", accelerator_type)
    family = match[1] if match else ""
    cores = _CORES_PER_CHIP.get(family)
    chips = int(match[2]) // cores if match and cores else 0
    whole = (_FLAT_GRIDS if family in _FLAT else _CUBE_GRIDS).get(chips)
    if whole is None:
        raise DevicesError(
            f"TPU type {accelerator_type!r} is unknown; known are "
            f"{', '.join(name + '-N' for name in _CORES_PER_CHIP)} of the usual sizes; for another "
            "set TPU_PROCESS_BOUNDS and TPU_CHIPS_PER_PROCESS_BOUNDS"
        )
    # Eight chips of v5e and v6e sit in one host; every larger slice is made of hosts with four.
    if chips <= 4 or (chips == 8 and family in ("v5litepod", "v5e", "v6e")):
        return whole, (1, 1, 1)
    return (2, 2, 1), (whole[0] // 2, whole[1] // 2, whole[2])


def _grid_of_ranks(whole: Slice, local_world_size: int) -> Grid:
    chips = whole.chips_per_host
    if local_world_size == chips:
        x, y, z = (
            host * hosts for host, hosts in zip(whole.host_grid, whole.hosts_grid, strict=True)
        )
        return x, y, z
    if local_world_size > chips:
        raise DevicesError(
            f"{local_world_size} ranks asked for, but this host has {chips} TPU chips; "
            f"use nprocs={chips} or less"
        )
    part = _PART_GRIDS.get(local_world_size)
    if part is None:
        fit = ", ".join(str(size) for size in [*_PART_GRIDS, chips] if size <= chips)
        raise DevicesError(
            f"{local_world_size} ranks make no sub-slice of a host with {chips} TPU chips; "
            f"use {fit}"
        )
    return part


def _hosts(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]

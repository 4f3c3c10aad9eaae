"""TPU facts that scripts and other launchers ask for before anything runs, by torch_xla's names."""

import glob
import os
import re
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

from torch_xdist import settings, world
from torch_xdist.core.devices.ordinals import get_master_ip
from torch_xdist.settings import getenv_as
from torch_xdist.system import tpu_metadata
from torch_xdist.torch_xla_compat import plugins
from torch_xdist.torch_xla_compat.runtime_facts import device_type

_GOOGLE_PCI_VENDOR_ID = "0x1ae0"
# v2 and v3, v4, v5e, v5p, v6e, 7x.
_TPU_PCI_DEVICE_IDS = ["0x0027", "0x005e", "0x0063", "0x0062", "0x006f", "0x0076", "0x0056"]
_LIMIT_S = 3.0


class TpuEnv(TypedDict):
    """What is known of the slice of this host; grids of chips or hosts are text, "2,2,1"."""

    ACCELERATOR_TYPE: str
    TPU_PROCESS_BOUNDS: str
    TPU_CHIPS_PER_HOST_BOUNDS: str
    WORKER_ID: int


class MeshShape(NamedTuple):
    """A grid of chips or of hosts."""

    x: int
    y: int
    z: int

    @classmethod
    def from_string(cls, mesh: str) -> "MeshShape":
        """The grid of "2,2,1". Raises ValueError where there are not three sizes."""
        sizes = tuple(int(size) for size in mesh.split(","))
        if len(sizes) != 3:
            raise ValueError(f"Mesh shape '{mesh}' should be length 3; write it as 2,2,1")
        return cls(*sizes)

    @property
    def size(self) -> int:
        """How many there are."""
        return self.x * self.y * self.z

    def __mul__(self, other: Any) -> "MeshShape":
        """The grid of a grid of such grids."""
        return MeshShape(*(mine * theirs for mine, theirs in zip(self, other)))


def _get_metadata(key: str) -> str:
    """An attribute of this host. Raises OSError where no metadata server answers."""
    try:
        return tpu_metadata.attribute(key, _LIMIT_S)
    except OSError as error:
        raise OSError(
            f"Failed to get TPU metadata: the server did not answer for {key!r} ({error}); on a"
            " host without one set TPU_SKIP_MDS_QUERY=1, TPU_ACCELERATOR_TYPE, TPU_WORKER_ID and"
            " TPU_WORKER_HOSTNAMES"
        ) from error


def _using_env_vars() -> bool:
    # JAX sets the first one where it finds no TPU.
    return bool(getenv_as("TPU_SKIP_MDS_QUERY", str) and getenv_as("TPU_ACCELERATOR_TYPE", str))


def build_tpu_env_from_vars() -> TpuEnv:
    """The slice as variables name it."""

    hosts = getenv_as("TPU_PROCESS_BOUNDS", str) or getenv_as("TPU_HOST_BOUNDS", str)
    chips = getenv_as("TPU_CHIPS_PER_PROCESS_BOUNDS", str)
    worker = getenv_as("CLOUD_TPU_TASK_ID", str) or getenv_as("TPU_WORKER_ID", str)
    found = {
        "ACCELERATOR_TYPE": getenv_as("TPU_ACCELERATOR_TYPE", str),
        "TPU_PROCESS_BOUNDS": hosts,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": chips or getenv_as("TPU_CHIPS_PER_HOST_BOUNDS", str),
        "WORKER_ID": worker,
    }
    return cast(TpuEnv, found)


def get_tpu_env() -> TpuEnv:
    """The slice, from variables where TPU_SKIP_MDS_QUERY is set, else from the metadata server."""
    if _using_env_vars():
        return build_tpu_env_from_vars()
    return cast(TpuEnv, tpu_metadata.rows(_get_metadata("tpu-env")))


def _accelerator_type() -> str:
    """The name of the slice, "v4-32"; "" where there is no TPU."""
    named = getenv_as("TPU_ACCELERATOR_TYPE", str)
    if named:
        return named
    try:
        return get_tpu_env()["ACCELERATOR_TYPE"] or ""
    except OSError:
        if num_available_chips():
            raise
        return ""


def version() -> int:
    """The TPU's generation ("v4-8" -> 4); 0 where there is none.

    Raises OSError for a TPU whose name cannot be found or is no TPU's.
    """
    name = _accelerator_type()
    match = re.match(r"(?:v|tpu)(\d+)[A-Za-z]*-\d+$", name)
    if name and not match:
        raise OSError(f"Failed to parse TPU version from metadata: {name!r}; expected v4-8 or so")
    return int(match[1]) if match else 0


def get_tpu_type() -> str:
    """The TPU's kind ("v6e-8" -> "v6e"); "" where there is none."""
    return _accelerator_type().split("-")[0]


def num_available_chips() -> int:
    """How many TPU chips this host has, counted on its PCI bus; starts nothing."""
    return sum(
        Path(vendor).read_text().strip() == _GOOGLE_PCI_VENDOR_ID
        and Path(vendor).with_name("device").read_text().strip() in _TPU_PCI_DEVICE_IDS
        for vendor in glob.glob("/sys/bus/pci/devices/*/vendor")
    )


def num_logical_cores_per_chip() -> int:
    """How many xla devices a chip shows: two up to v3."""
    return 2 if version() <= 3 else 1


def num_available_devices() -> int:
    """How many xla devices a job on this host may use; starts nothing.

    Without a TPU the answer is CPU_NUM_DEVICES or 1, so that launchers which ask "is there a TPU"
    here find the device that is there.
    """
    chips = num_available_chips()
    return chips * num_logical_cores_per_chip() if chips else settings.cpu_num_devices() or 1


def num_expected_global_devices() -> int:
    """How many xla devices the slice has."""
    return num_available_devices() * num_tpu_workers()


def process_bounds_size() -> int | None:
    """How many processes TPU_PROCESS_BOUNDS names; None where it is not set."""
    bounds = getenv_as("TPU_PROCESS_BOUNDS", str)
    return MeshShape.from_string(bounds).size if bounds else None


def num_local_processes() -> int:
    """How many processes this host shall have: one for each chip, and not more than are named."""
    chips, total = num_available_chips(), process_bounds_size()
    return min(chips, total) if total else chips


def task_id() -> int | None:
    """Which of the slice's processes this is; None where CLOUD_TPU_TASK_ID is not set."""
    return getenv_as("CLOUD_TPU_TASK_ID", int)  # type: ignore[no-any-return]


def worker_id() -> int:
    """Which of the slice's hosts this is."""
    return int(get_tpu_env()["WORKER_ID"])


def get_worker_ips() -> list[str]:
    """The slice's hosts in the order of their worker ids; ["localhost"] where it is one."""
    if _using_env_vars():
        hosts = (getenv_as("TPU_WORKER_HOSTNAMES", str) or "").split(",")
    else:
        hosts = tpu_metadata.addresses(_get_metadata("worker-network-endpoints"))
    return hosts if len(hosts) > 1 else ["localhost"]


def num_tpu_workers() -> int:
    """How many hosts the slice has."""
    return len(get_worker_ips())


def discover_master_worker_ip(use_localhost: bool = True) -> str:
    """The address of the host of rank 0; "localhost" where the slice is one host."""
    hosts = get_worker_ips()
    return "localhost" if len(hosts) == 1 else get_master_ip()


def configure_one_chip_topology() -> None:
    """Let this process have the first chip alone. Call it before the first use of a device."""
    one = "1,1,1"
    _set_defaults(TPU_VISIBLE_CHIPS="0", TPU_CHIPS_PER_PROCESS_BOUNDS=one, TPU_PROCESS_BOUNDS=one)


def initialize_singleprocess() -> None:
    """Make this process a job of its own with one chip, before the first use of a device."""
    if plugins.using_dynamic_plugins():
        plugins.default().configure_single_process()
    elif device_type() == "TPU":
        configure_one_chip_topology()
    settings.set_local_rank(0, 1)
    world.forget()


def configure_topology(local_rank: int, local_world_size: int, base_port: int = 8476) -> None:
    """Let this process have one chip of the slice; variables that are set already are kept.

    Our launcher does it by itself. Call it before the first use of a device.

    Args:
        local_rank: which of this host's processes this is.
        local_world_size: how many it has; every host has as many.
        base_port: of the first process; the others follow, and each must be free.
    """
    env = get_tpu_env()
    grid = ",".join(map(str, _grid_of_chips(env)))
    ports = range(base_port, base_port + local_world_size)
    _set_defaults(
        TPU_CHIPS_PER_PROCESS_BOUNDS="1,1,1",
        TPU_PROCESS_BOUNDS=f"{grid},2" if version() == 7 else grid,
        CLOUD_TPU_TASK_ID=str(int(env["WORKER_ID"]) * local_world_size + local_rank),
        TPU_PROCESS_ADDRESSES=",".join(
            f"{host}:{port}" for host in get_worker_ips() for port in ports
        ),
        TPU_VISIBLE_CHIPS=str(local_rank),
        TPU_PROCESS_PORT=str(ports[local_rank]),
    )


def _grid_of_chips(env: Any) -> MeshShape:
    """All chips of the slice."""
    if version() >= 4:
        hosts = MeshShape.from_string(env["TPU_PROCESS_BOUNDS"])
        return hosts * MeshShape.from_string(env["TPU_CHIPS_PER_PROCESS_BOUNDS"])
    # The metadata of v2 and v3 names no bounds: hosts of 2 x 2 chips, eight cores, lie in a
    # square, or in a rectangle of two.
    count = int(env["ACCELERATOR_TYPE"].split("-")[1]) // 8
    across = 2 ** ((count.bit_length() - 1) // 2)
    return MeshShape(across, count // across, 1) * MeshShape(2, 2, 1)


def _set_defaults(**variables: str) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


class TpuPlugin(plugins.DevicePlugin):
    """The TPU as a plugin: what libtpu is and how its processes divide the chips."""

    def library_path(self) -> str:
        """Where libtpu is. Raises OSError where neither variable says it."""
        path = getenv_as("TPU_LIBRARY_PATH", str) or getenv_as("PTXLA_TPU_LIBRARY_PATH", str)
        if not path:
            raise OSError("libtpu not found: set TPU_LIBRARY_PATH to its libtpu.so")
        return path

    def host_index(self) -> int:
        return worker_id()

    def configure_single_process(self) -> None:
        configure_one_chip_topology()

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        configure_topology(local_rank, local_world_size)

    def physical_chip_count(self) -> int:
        return num_local_processes()

    def client_create_options(self) -> dict[str, Any]:
        in_flight = getenv_as("XLA_TPU_MAX_INFLIGHT_COMPUTATIONS", int, 32)
        return {"max_inflight_computations": in_flight, "ml_framework_name": "PyTorch/XLA"}

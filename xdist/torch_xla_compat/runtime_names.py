"""Private calls of torch_xla about devices, the runtime and the reports, answered by the core."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import torch

from torch_xdist import metrics
from torch_xdist.core.alias.storage import address_of
from torch_xdist.core.devices import device, device_names, ordinals, steps
from torch_xdist.core.programs import program
from torch_xdist.core.record.arguments import on_device
from torch_xdist.core.run.device_trace import buffer_of
from torch_xdist.core.trace.values import root_of
from torch_xdist.errors import DeviceError
from torch_xdist.torch_xla_compat import runtime_facts


@functools.cache
def _first_start() -> DeviceError | None:
    try:
        device.start()
    except DeviceError as error:
        return error
    return None


def _init_computation_client() -> None:
    """Start the devices, where nothing has yet; as in torch_xla the first outcome stays."""
    error = _first_start()
    if error is not None:
        raise DeviceError(str(error)) from error


def _init_xla_lazy_backend() -> None:
    """Count what `import torch_xla` has done once: it has given torch the device."""
    if not metrics.counter_value("RegisterXLAFunctions"):
        metrics.count("RegisterXLAFunctions")


def _prepare_to_exit() -> None:
    """Wait until the devices have done what was launched."""
    if device.is_started():
        steps.wait_device_ops()


def _xla_runtime_is_initialized() -> bool:
    """Whether the devices have started."""
    return device.is_started()


def _xla_computation_cache_is_initialized() -> bool:
    """Whether a program was compiled, and so the folder of `initialize_cache` is chosen."""
    return len(program.PROGRAMS) > 0


def _xla_get_num_cached_compilation_graph() -> int:
    """How many programs are kept."""
    return runtime_facts.get_num_cached_compilation_graph()


def _xla_get_all_devices() -> list[str]:
    """["CPU:0", ...]: the devices of all processes."""
    return [
        f"{device.device_type()}:{ordinal}" for ordinal in range(ordinals.global_device_count())
    ]


def _xla_num_devices() -> int:
    """How many devices this process has."""
    return ordinals.addressable_device_count()


def _xla_num_global_devices() -> int:
    """How many devices all processes have."""
    return ordinals.global_device_count()


def _xla_get_process_index() -> int:
    """The number of this process."""
    return ordinals.process_index()


def _xla_get_num_processes() -> int:
    """How many processes there are."""
    return ordinals.process_count()


def _xla_set_default_device(device_: str = "") -> str:
    """Make a device this thread's; returns what was before."""
    before = str(device.device())
    device.set_default_index(device.index_of(device_ or None))
    return before


def _xla_get_default_device_ordinal() -> int:
    """The index of this thread's device."""
    return device.default_index()


def _xla_get_device_ordinal(device_: str) -> int:
    """The index of a device."""
    return device.index_of(device_)


def _xla_get_device_hw_type(tensor: torch.Tensor) -> str:
    """CPU, TPU or CUDA: what a tensor is on."""
    return device_names.xla_device_hw(tensor.device)


def _xla_device_kind(device_: str = "") -> str:
    """What the maker calls a device."""
    return device_names.xla_device_kind(device_ or None)


def _xla_get_device_attributes(device_: str) -> dict[str, Any]:
    """`torch_xla.runtime.runtime_device_attributes`."""
    return runtime_facts.runtime_device_attributes(device_)


def _xla_get_all_device_attributes() -> list[dict[str, Any]]:
    """`torch_xla.runtime.global_runtime_device_attributes`."""
    return runtime_facts.global_runtime_device_attributes()


def _xla_get_platform_version() -> str:
    """What XLA's plugin says about itself."""
    return str(device.jax_device(0).client.platform_version)


def _xla_memory_info(device_: str = "") -> device_names.MemoryInfo:
    """`xm.get_memory_info`."""
    return device_names.get_memory_info(device_ or None)


def _xla_get_mat_mul_precision() -> str:
    """`torch_xla.backends.get_mat_mul_precision`."""
    return runtime_facts.get_mat_mul_precision()


def _xla_sync_live_tensors(
    device_: str = "", devices: Sequence[str] = (), wait: bool = True
) -> None:
    """Run what every thread has recorded for a device, without the end of a step."""
    steps.run_pending("sync_live", [device_] if device_ else [])
    if wait:
        steps.wait_device_ops([device_] if device_ else [])


def _xla_get_tensor_view_alias_id(tensor: torch.Tensor) -> int:
    """A number that a tensor shares with its views."""
    return address_of(root_of(on_device(tensor, "_xla_get_tensor_view_alias_id").value))


def _unsafe_buffer_pointer(tensor: torch.Tensor) -> int:
    """Where a device tensor's values lie in the device's memory; what is pending runs first."""
    buffer = buffer_of(on_device(tensor, "_unsafe_buffer_pointer").value)
    if not isinstance(buffer, jax.Array) or len(buffer.addressable_shards) != 1:
        raise DeviceError(
            f"_unsafe_buffer_pointer: the tensor of shape {tuple(tensor.shape)} lies on several"
            " devices, or on the host; ask for a tensor of one device"
        )
    return buffer.unsafe_buffer_pointer()  # type: ignore[no-any-return]


def _xla_increment_counter(name: str, increment: int) -> None:
    """Add to a counter."""
    metrics.count(name, increment)

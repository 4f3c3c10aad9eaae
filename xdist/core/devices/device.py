"""The xla devices of this process: which platform, how many, which is a thread's default.

JAX's backend starts at the first use, never at import: launchers fork after importing us.
"""

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from torch_xdist import settings, world
from torch_xdist.core.devices import plugins
from torch_xdist.core.kept import compiling_apart, on_disk
from torch_xdist.core.programs import heap
from torch_xdist.core.run.device_trace import (
    HERE,
    check_process,
    forget_in_forked_child,
    trace_here,
)
from torch_xdist.core.sharding.layout import Layout
from torch_xdist.core.trace.random_stream import RandomStream
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.values import Device, hardware_name
from torch_xdist.errors import DeviceError, DeviceIndexError
from torch_xdist.platforms import Choices
from torch_xdist.progress import PROGRESS
from torch_xdist.system import tpu_host
from torch_xdist.system.rank import Rank

_PLATFORMS = {"CPU": "cpu", "TPU": "tpu", "CUDA": "cuda", "GPU": "cuda"}
_lock = threading.RLock()
_devices: list[Device] = []
_default = threading.local()
_default_seed = 0
_drives_all = False
# Devices that this process does not have: it compiles for them.
_described: list[jax.Device] = []
_layout_type: type[Layout] = Layout
_memory_of_described: Callable[[], dict[str, int]] = dict
_starters: list[Callable[[], None]] = []


def drive_all() -> None:
    """Let this process, one rank for its launcher, have all CPU_NUM_DEVICES devices of its host."""
    global _drives_all
    _drives_all = True


def start_with(starter: Callable[[], None]) -> None:
    """Call this just before the first use of a device."""
    _starters.append(starter)


def describe(
    devices: Sequence[jax.Device], layout: type[Layout], memory: Callable[[], dict[str, int]]
) -> None:
    """Make these the devices of the job; they are described alone, so nothing can run on them.

    Args:
        layout: how they stand behind the logical device.
        memory: what one would say of its memory, as `memory_stats`.
    """
    global _layout_type, _memory_of_described
    _described[:] = devices
    _layout_type, _memory_of_described = layout, memory


def are_described() -> bool:
    """Whether the devices are described alone: nothing runs on them, so nothing is waited for."""
    return bool(_described)


def memory_stats(index: int) -> dict[str, int]:
    """What xla:`index` says of its memory, by JAX's names; {} where it says nothing."""
    device = jax_device(index)
    return _memory_of_described() if _described else device.memory_stats() or {}


def all_devices() -> list[jax.Device]:
    """All devices of the job, as JAX has them or as they are described."""
    start()
    return list(_described) or list(jax.devices())


def start() -> None:
    """Start JAX's backend if it is not up."""
    if _devices:
        return
    check_process()
    with _lock:
        if _devices:
            return
        # Scripts set variables after the import; from the first use of a device on they hold.
        settings.reread()
        for starter in _starters:
            starter()
        _configure()
        with PROGRESS.start():
            if not _described:
                world.join()
            found = [Device(i, jax, RandomStream()) for i, jax in enumerate(_addressable())]
        if len(_described) > 1:
            found[0].peers = tuple(_described)
        for device_ in found:
            device_.random.set_seed(_default_seed)
        if settings.asks_for_spmd():
            _stand_for_all(found, "XLA_USE_SPMD")
        _devices.extend(found)


def _stand_for_all(found: list[Device], of: str) -> None:
    """Leave of these devices the first alone, as the logical device of all of the job."""
    be_one_rank(of)
    found[0].layout = _layout_type(
        sorted(_described or jax.devices(), key=lambda device: device.id)
    )
    del found[1:]


def become_one() -> None:
    """Make xla:0 the logical device that stands for all devices of the job.

    Tensors on other devices of this process stay, but no new ones come.
    """
    start()
    with _lock:
        if _devices[0].layout is None:
            _stand_for_all(_devices, "use_spmd")


def be_one_rank(of: str) -> None:
    """Make the processes of the job one rank. Raises DeviceError where they cannot be."""
    here = world.current()
    if here.world_size > 1:
        _check_may_be_one(of, here)
    world.be_one_rank()


def _check_may_be_one(of: str, here: Rank) -> None:
    if here.task == "function" or world.replica() is not None:
        raise DeviceError(
            f"{of}: this function is rank {here.rank} of {here.world_size} of xmp.spawn, which"
            " drives its own device; one device stands for all with SPMD: call the function"
            " itself, once on each host"
        )
    if _devices and not _described and jax.process_count() != here.world_size:
        raise DeviceError(
            f"{of}: this process is {here.rank} of {here.world_size}, and has used a device"
            " already, by itself; call torch_xla.runtime.use_spmd() first"
        )


def layout() -> Layout | None:
    """The devices behind the logical device; None where each device is one."""
    start()
    return _devices[0].layout


def _configure() -> None:
    name = "CPU" if _described else settings.current().platform
    if name is not None:
        key = name.upper()
        if key in plugins.REGISTERED and key not in _PLATFORMS:
            jax.config.update("jax_platforms", plugins.tell_jax(key, world.current()))
        elif key in _PLATFORMS:
            jax.config.update("jax_platforms", _PLATFORMS[key])
        else:
            known = ", ".join([*_PLATFORMS, *plugins.REGISTERED])
            raise DeviceError(
                f"No PjRtPlugin registered for: {name}. Make sure the environment variable"
                f" PJRT_DEVICE is set to a correct device name. It may be {known}"
            )
    elif not jax.config.jax_platforms and plugins.leave_only_the_cpu():  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    has_several = settings.asks_for_spmd() or _drives_all or not world.current().is_rank
    if has_several and (name or "CPU").upper() == "CPU":
        _make_cpu_devices(settings.current().cpu_devices)
    if (name or "CPU").upper() == "CPU":
        settings.fit_to_one_core()
        heap.keep_freed_memory()
    compiling_apart.install()
    on_disk.use(by_host=(name or "").upper() != "TPU")


def _make_cpu_devices(count: int | None) -> None:
    """Give this process `count` CPU devices; without a count it has those JAX gives it, one."""
    if count is None:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        if len(jax.local_devices()) != count:
            raise DeviceError(
                f"CPU_NUM_DEVICES={count}: JAX runs already, with {len(jax.local_devices())}"
                " device(s); use an xla device before the first JAX operation"
            ) from error


def _addressable() -> list[jax.Device]:
    if _described:
        return _described[:1]
    wanted = (settings.current().platform or "").upper()
    unfit = tpu_host.why_unfit() if wanted == "TPU" else ""
    if unfit:
        warnings.warn(f"PJRT_DEVICE=TPU: {unfit}", stacklevel=2)
    try:
        found = jax.local_devices()
    except RuntimeError as error:
        busy = tpu_host.why_busy() if wanted == "TPU" else ""
        raise DeviceError(
            f"PJRT_DEVICE={wanted or 'the best platform'}: JAX cannot start it: {error}"
            f"{f' ({busy})' if busy else ''}"
        ) from error
    return list(found)


def device_count() -> int:
    """How many xla devices this process addresses."""
    start()
    return len(_devices)


def is_started() -> bool:
    """Whether a device was used in this process."""
    return bool(_devices)


def device_at(index: int) -> Device:
    """What the trace knows of xla:`index`."""
    start()
    return _devices[check_index(index)]


def device_of(place: Any) -> Device:
    """What the trace knows of the device that an argument means, as `index_of` takes it."""
    if place is None and _devices:
        return _devices[default_index()]
    return device_at(index_of(place))


def jax_device(index: int) -> jax.Device:
    """The JAX device behind xla:`index`."""
    return device_at(index).jax


def trace_of(index: int) -> Trace:
    """Where this thread records for xla:`index`: its trace, or the function it is recording."""
    return HERE.symbolic or trace_here(device_at(index))


def check_index(index: int) -> int:
    if 0 <= index < len(_devices):
        return index
    raise DeviceIndexError(
        f"xla:{index}: this process has {len(_devices)} xla device(s), "
        f"xla:0 to xla:{len(_devices) - 1}; use one of them"
    )


def is_ours(place: torch.device) -> bool:
    """Whether this is an xla device; torch's C++ names it by the one underneath, `lazy`."""
    return place.type in ("xla", "lazy")


def index_of(device: Any = None) -> int:
    """The index a device argument means; None and "xla" mean the thread's default."""
    if device is None:
        return default_index()
    if isinstance(device, int):
        return device
    parsed = torch.device(device)
    return default_index() if parsed.index is None else parsed.index


def default_index() -> int:
    """The index of this thread's default device."""
    return getattr(_default, "index", 0)


def set_default_index(index: int) -> None:
    """Make xla:`index` this thread's default device."""
    start()
    _default.index = check_index(index)


def device(index: int | None = None) -> torch.device:
    """This thread's xla device; with an index, that one, which becomes the default.

    Raises DeviceError where the index is out of range.
    """
    start()
    if index is not None:
        set_default_index(index)
    return torch.device("xla", default_index())


def devices() -> list[torch.device]:
    """Every addressable xla device."""
    return [torch.device("xla", i) for i in range(device_count())]


def device_type() -> str:
    """CPU, TPU, CUDA: the platform's name as torch_xla spells it."""
    return hardware_name(jax_device(0)).partition(":")[0]


def choices() -> Choices:
    """What depends on the platform that this process' programs are for."""
    start()
    return _devices[0].choices


# Where there are none of these, they are kept on the host; other dtypes are refused by name.
NOT_EVERYWHERE = frozenset({torch.complex32, torch.complex128})


def holds(dtype: torch.dtype) -> bool:
    """Whether programs of this platform can hold tensors of a dtype, which `to_jax` may refuse."""
    if dtype is torch.complex128:
        return "complex128" not in choices().refused_dtypes
    return dtype is not torch.complex32


def started() -> list[Device]:
    """Every device, as the trace knows it."""
    start()
    return list(_devices)


def real_devices() -> list[str]:
    """The devices by hardware, such as ["CPU:0"]."""
    start()
    return [hardware_name(d.jax) for d in _devices]


def set_default_seed(seed: int) -> None:
    """Seed every device, also those that have not started yet."""
    global _default_seed
    _default_seed = seed
    for device_ in _devices:
        device_.random.set_seed(seed)


def _after_fork() -> None:
    """JAX's threads are not in a forked child: it may use a device only if the parent had not."""
    if _devices:
        _devices.clear()
        forget_in_forked_child()


os.register_at_fork(after_in_child=_after_fork)

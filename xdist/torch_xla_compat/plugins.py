"""Device plugins by torch_xla's names: platforms of the user's own, for JAX to start."""

import importlib.metadata
import os

from torch_xdist import settings
from torch_xdist.core.devices import device
from torch_xdist.core.devices.plugins import REGISTERED, DevicePlugin
from torch_xdist.errors import DeviceError
from torch_xdist.torch_xla_compat.runtime_facts import device_type

__all__ = ["DevicePlugin"]


def use_dynamic_plugins() -> None:
    """Let registered plugins serve their platforms. Raises DeviceError once a device is in use."""
    if device.is_started() and not using_dynamic_plugins():
        raise DeviceError(
            "Can't enable dynamic plugins after XLA runtime is initialized: it runs on"
            f" {device.device_type()}; call use_dynamic_plugins() before the first use of a device"
        )
    os.environ["PJRT_DYNAMIC_PLUGINS"] = "1"


def using_dynamic_plugins() -> bool:
    """Whether plugins were asked for, on a platform other than the CPU."""
    return bool(settings.getenv_as("PJRT_DYNAMIC_PLUGINS", bool, False)) and device_type() != "CPU"


def default() -> DevicePlugin:
    """The plugin of the platform in use. Raises DeviceError where it has none."""
    found = REGISTERED.get(device_type() or "")
    if found is None:
        raise DeviceError(
            f"plugins.default: {device_type()} has no plugin; registered are"
            f" {', '.join(REGISTERED) or 'none'}; call register_plugin first"
        )
    return found


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Let PJRT_DEVICE=`name` mean the hardware of this plugin, whose library JAX then loads."""
    REGISTERED[name.upper()] = device_plugin


def register_installed_plugins() -> None:
    """Register the plugins that installed packages offer, as entry points `torch_xla.plugins`."""
    for entry in importlib.metadata.entry_points(group="torch_xla.plugins"):
        register_plugin(entry.name, entry.load()())

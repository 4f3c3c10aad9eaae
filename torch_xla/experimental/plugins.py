"""Device plugins."""

from torch_xdist.torch_xla_compat.plugins import (
    DevicePlugin,
    default,
    register_installed_plugins,
    register_plugin,
    use_dynamic_plugins,
    using_dynamic_plugins,
)

__all__ = [
    "DevicePlugin",
    "default",
    "register_installed_plugins",
    "register_plugin",
    "use_dynamic_plugins",
    "using_dynamic_plugins",
]

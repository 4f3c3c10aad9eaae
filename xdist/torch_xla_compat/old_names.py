"""Functions of `xm` that torch_xla calls deprecated, or has dropped: they work, and warn once."""

from torch_xdist.core.devices import device_names, ordinals, steps
from torch_xdist.torch_xla_compat.deprecation import old_name

xla_device = old_name(device_names.xla_device, "torch_xla.device")
mark_step = old_name(steps.sync, "torch_xla.sync")
get_ordinal = old_name(ordinals.get_ordinal, "torch_xla.runtime.global_ordinal")
xrt_world_size = old_name(ordinals.xrt_world_size, "torch_xla.runtime.world_size")

"""PyTorch on XLA devices: importing this gives torch the device "xla".

The names are torch_xla's; the work is done by `torch_xdist`. Importing starts no thread and no
device: that happens when the first tensor or device is asked for.
"""

from torch_xdist import __version__
from torch_xdist.core.torch_side.import_without_gc import registration as _backend
from torch_xdist.distribution_name import answer_as_torch_xla, refuse_other_torch_xla

# The one above comes first: it loads jax and the core in three quarters of the time.
# isort: split
from torch_xdist.ahead import environment as _ahead
from torch_xdist.core.devices.device import device, device_count, devices, real_devices
from torch_xdist.core.devices.steps import sync
from torch_xdist.core.torch_side import loading as _loading
from torch_xdist.debug import flop_counts as _flop_counts
from torch_xdist.dynamo import collectives as _traced_collectives
from torch_xdist.dynamo import custom_ops as _custom_ops
from torch_xdist.dynamo import default_backend as _default_backend
from torch_xdist.dynamo import flex_attention as _flex_attention
from torch_xdist.launcher.ways_in.spawn import launch
from torch_xdist.ranks import sync_batch_norm as _sync_batch_norm
from torch_xdist.ranks.c10d import backend as _process_groups
from torch_xdist.torch_xla_compat.random_seeds import manual_seed
from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand
from torch_xdist.training import eager as _eager
from torch_xdist.training import gru as _gru
from torch_xdist.training.compiled_step import compile, step

refuse_other_torch_xla(__file__)
answer_as_torch_xla()
_gru.register()
_loading.register()
_traced_collectives.register()
_flop_counts.register()
_default_backend.register()
_flex_attention.register()
_sync_batch_norm.register()
_eager.follow_environment()
_ahead.follow_environment()
_on_demand(__name__)

from torch_xla import (  # noqa: E402 - after the check, which explains what these could not
    _XLAC,
    amp,
    backends,
    debug,
    experimental,
    runtime,
    stablehlo,
)
from torch_xla._internal import tpu  # noqa: E402
from torch_xla.core import xla_model  # noqa: E402
from torch_xla.core import xla_model as xm  # noqa: E402
from torch_xla.stablehlo import (  # noqa: E402
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)

__all__ = [
    "_XLAC",
    "__version__",
    "_backend",
    "_process_groups",
    "_custom_ops",
    "_eager",
    "_gru",
    "_loading",
    "_traced_collectives",
    "amp",
    "backends",
    "compile",
    "debug",
    "device",
    "device_count",
    "devices",
    "experimental",
    "launch",
    "manual_seed",
    "real_devices",
    "runtime",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "stablehlo",
    "step",
    "sync",
    "tpu",
    "xla_model",
    "xm",
]

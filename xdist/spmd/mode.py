"""SPMD mode: `xla:0` stands for every device of the job, on all hosts."""

import warnings

from torch_xdist import settings
from torch_xdist.core.devices import device, steps
from torch_xdist.core.run.device_trace import traces_of


def use_spmd(auto: bool | None = False) -> None:
    """Make `xla:0` the one device of this process, which stands for all devices of the job.

    Call it before the first tensor: those that are there already are copied to every device when
    they are used. Source: `torch_xla.runtime.use_spmd`.

    Args:
        auto: what nobody marks is cut as well where it comes from the host: along its first dims
            that the devices divide, along the mesh of XLA_AUTO_SPMD_MESH. XLA decides about
            everything that is computed, from what is cut, also without it.

    A job may have several processes, one on each host, say; all run the same script, and the
    device stands for the devices of all of them.

    Raises DeviceError in a function that xmp.spawn started.
    """
    device.be_one_rank("use_spmd")
    settings.ask_for_spmd(bool(auto))
    if device.is_started() and device.layout() is None:
        if any(traces_of(device.device_at(i)) for i in range(device.device_count())):
            steps.run_pending("use_spmd")
            warnings.warn(
                "use_spmd: there are tensors from before; each is copied to every device when it"
                " is used. Call use_spmd() before the first tensor",
                stacklevel=2,
            )
        device.become_one()


def is_spmd() -> bool:
    """Whether SPMD mode is asked for: by `use_spmd`, or by XLA_USE_SPMD."""
    return settings.asks_for_spmd()

"""The modes of torch, JAX and this thread that decide what a call records, as one value."""

from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from torch_xdist import settings
from torch_xdist.core.run import analysis
from torch_xdist.core.trace import donation, global_state, notes
from torch_xdist.core.trace.values import Device

# Hooks that every module or optimizer calls; torch keeps each kind in a dict by number.
_HOOKS = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
    torch_optimizer._global_optimizer_pre_hooks,
    torch_optimizer._global_optimizer_post_hooks,
)
# The numbers of those by which a recording finds modules and optimizers.
OWN_HOOKS: set[int] = set()
_functions_that_intercept = torch._C._len_torch_function_stack
_modes_that_intercept = torch._C._len_torch_dispatch_stack


def modes(device: Device) -> tuple[Any, ...]:
    """Everything of this thread's state that changes what the same Python records. Comparable."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla") and torch.get_autocast_dtype("xla"),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_default_dtype(),
        global_state.of_program(device.choices),
        [mode.device for mode in _function_modes() if hasattr(mode, "device")],
        [number for hooks in _HOOKS if hooks for number in hooks if number not in OWN_HOOKS],
    )


NAMES = (
    "grad mode", "inference mode", "autocast of xla", "autocast of the CPU", "autocast's cache",
    "anomaly mode", "the default dtype", "the precision of products, or a setting of JAX",
    "the default device", "the hooks of all modules or optimizers",
)  # fmt: skip


def refusal(device: Device) -> str:
    """Why nothing is replayed at present in this thread, whatever the function; "" where it may."""
    now = settings.current()
    if device.layout is not None:
        return "tensors of the logical device are sharded (SPMD)"
    if _modes_that_intercept():
        return "a TorchDispatchMode wants to see every operator"
    if _functions_that_intercept() and not _are_devices_alone():
        return "a TorchFunctionMode wants to see every call"
    if now.graph_file or now.hlo_file or now.hlo_in_errors or now.debug_level:
        return (
            "a variable asks for texts about what runs (PT_XLA_DEBUG, XLA_SAVE_TENSORS_FILE, ...)"
        )
    if notes.is_noting():
        return "it is noted where rows are recorded (XLA_IR_DEBUG, XLA_HLO_DEBUG)"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "hooks want to see what autograd saves"
    if not donation.NOW.unreferenced:
        return "programs may overwrite nothing but what was given away"
    if not analysis.allows_execution():
        return "programs may not run"
    return ""


def _are_devices_alone() -> bool:
    """Whether all such modes are those of torch.set_default_device and `with torch.device`."""
    return all(mode.__class__.__name__ == "DeviceContext" for mode in _function_modes())


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(_functions_that_intercept())]

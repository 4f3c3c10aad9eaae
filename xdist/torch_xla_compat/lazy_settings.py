"""Switches of torch_xla's lazy core by their private names, element types, and custom calls.

A number of a graph is an input of its program, so that another number makes no new one; some are
constants in it. The first two switches say which.
"""

from typing import Any

import jax
import torch

from torch_xdist.core.record.inference import SMALL_INTS, STATIC_INTS
from torch_xdist.dtypes import XLA_NAMES, to_jax, to_torch
from torch_xdist.errors import ArgumentError

_shares_device_data = True


def _set_xla_handle_special_scalars(value: bool) -> None:
    """Let the integers from -2 to 2 be constants of programs, or inputs like all other numbers.

    It counts for operators recorded from now on. Constants let XLA simplify (x * 1 is x); inputs
    make fewer programs.
    """
    if value:
        STATIC_INTS.update(SMALL_INTS)
    else:
        STATIC_INTS.clear()


def _get_xla_handle_special_scalars() -> bool:
    """Whether small integers are constants, as they are unless the switch says otherwise."""
    return bool(STATIC_INTS)


def _set_xla_enable_device_data_cache(value: bool) -> None:
    """Keep the switch for who reads it back. Nothing depends on it.

    In torch_xla equal numbers share a buffer on the device while it is on. Here numbers go to a
    program as its inputs and have no buffers.
    """
    global _shares_device_data
    _shares_device_data = bool(value)


def _get_xla_enable_device_data_cache() -> bool:
    """What `_set_xla_enable_device_data_cache` was given last; True before."""
    return _shares_device_data


def _get_xla_tensor_shape_type(tensor: torch.Tensor) -> str:
    """XLA's name of the elements a device tensor has on the device: "f32", "bf16", "pred", ...

    Where variables such as XLA_USE_BF16 store a dtype narrower, it is the narrower one.
    """
    stored = to_torch(to_jax(tensor.dtype))
    return XLA_NAMES[stored]


def _xla_register_custom_call_target(
    fn_name: str, function_ptr: Any, platform: str, api_version: int = 0
) -> None:
    """Give XLA a function of yours as the target `fn_name` of custom calls.

    Args:
        function_ptr: a PyCapsule around its address; `jax.ffi.pycapsule` makes one.
        platform: "CPU", "CUDA" or "TPU".
        api_version: 0: a plain C function, as in torch_xla; 1: a handler of XLA's FFI. The calls
            say it too: `stablehlo_custom_call(..., api_version=)` is 1 or 2 for 0, and 4 for 1.
    """
    if type(function_ptr).__name__ != "PyCapsule":
        raise ArgumentError(
            f"_xla_register_custom_call_target({fn_name!r}): the function is a"
            f" {type(function_ptr).__name__}; give it a PyCapsule, such as jax.ffi.pycapsule makes"
        )
    jax.ffi.register_ffi_target(
        fn_name, function_ptr, platform=platform.lower(), api_version=api_version
    )

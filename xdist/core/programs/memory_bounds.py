"""Programs that need more memory than there is end with OutOfMemoryError, before they run.

XLA's CPU client would wait for ever for a buffer that the system does not give it. That of a GPU
finds it out once the program has begun: what it would have written over, parameters for example, is
lost then. So a large program asks first whether there is room for it.
"""

import contextlib
import functools
import gc
import re
from typing import Any

import jax
import psutil

from torch_xdist import platforms
from torch_xdist.core.programs.program_cache import Program
from torch_xdist.errors import OutOfMemoryError

_ADVICE = "delete tensors that are not needed before the step ends, or compute in parts"
# A program that takes a smaller part of the device than this one does not ask for room.
_SMALL_PART = 256
# What XLA says where an allocation fails, in compiling too: it tries kernels out.
_EXHAUSTED = re.compile(r"RESOURCE_EXHAUSTED: (Out of memory[^\n\[]*)")


@functools.cache
def host_bytes() -> int:
    """The memory of this host, with what it may swap out."""
    return int(psutil.virtual_memory().total + psutil.swap_memory().total)


def check(program: Program, jax_device: Any) -> None:
    """Raise OutOfMemoryError for a compiled program that needs more than its device has.

    What others hold of the device is not counted here; `Program.asks_bytes` is set where
    `make_room` has to.

    Args:
        jax_device: a `jax.Device`.
    """
    sizes: Any = program.memory()
    if sizes is None:
        return
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    between = sizes.temp_size_in_bytes
    needed = results + between
    if platforms.of(jax_device.platform).is_host:
        there, where, operands = host_bytes(), "this host", ""
    else:
        there, where = _device_bytes(jax_device), str(jax_device)
        needed += sizes.argument_size_in_bytes
        operands = f" {sizes.argument_size_in_bytes} for operands,"
    if there and needed > there:
        raise OutOfMemoryError(
            f"Error preparing computation: Out of memory allocating {needed} bytes:{operands}"
            f" {results} for results, {between} for values in between, where {where} has"
            f" {there} in all; {_ADVICE}"
        )
    if operands and there and results + between > there // _SMALL_PART:
        program.asks_bytes, program.asks_of = results + between, jax_device


def make_room(program: Program) -> None:
    """Raise OutOfMemoryError where a device is too full for one more run of a program.

    What runs meanwhile is waited for first, and then garbage is collected: both may give memory
    back.
    """
    asked, jax_device = program.asks_bytes, program.asks_of
    if _is_room(asked, jax_device):
        return
    for array in jax.live_arrays():
        # What failed is told to whoever reads it.
        with contextlib.suppress(RuntimeError):
            array.block_until_ready()
    if not _is_room(asked, jax_device):
        gc.collect()
    if not _is_room(asked, jax_device):
        stats = _stats(jax_device)
        raise OutOfMemoryError(
            f"{jax_device}: Out of memory: the program needs {asked} bytes beside its operands, and"
            f" {stats['bytes_in_use']} of {stats['bytes_limit']} are held; {_ADVICE}"
        )


def _is_room(asked: int, jax_device: Any) -> bool:
    stats = _stats(jax_device)
    return not stats or asked <= stats["bytes_limit"] - stats["bytes_in_use"]


def _device_bytes(jax_device: Any) -> int:
    """What JAX may take of a device's memory; 0 where it does not tell."""
    return _stats(jax_device).get("bytes_limit", 0)


def raise_if_exhausted(error: Exception, jax_device: Any) -> None:
    """Raise OutOfMemoryError where an error of XLA says that a device has no memory left."""
    match = _EXHAUSTED.search(str(error))
    if match is None or isinstance(error, OutOfMemoryError):
        return
    stats = _stats(jax_device)
    held = f"; {stats['bytes_in_use']} of {stats['bytes_limit']} bytes are held" if stats else ""
    raise OutOfMemoryError(f"{jax_device}: {match[1].strip()}{held}; {_ADVICE}") from error


def _stats(jax_device: Any) -> dict[str, int]:
    """A device's own account of its memory; a device that is only compiled for has none."""
    try:
        return jax_device.memory_stats() or {}
    except (AttributeError, RuntimeError):
        return {}

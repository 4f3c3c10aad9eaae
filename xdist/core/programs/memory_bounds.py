"""Programs that need more memory than there is end with OutOfMemoryError, before they run.

XLA's CPU client would wait for ever for a buffer that the system does not give it; that of a GPU
fails once the operands of the program are used up.
"""

import functools
import re
from typing import Any

import psutil

from torch_xdist import platforms
from torch_xdist.core.programs.program_cache import Program
from torch_xdist.errors import OutOfMemoryError

_ADVICE = "delete tensors that are not needed before the step ends, or compute in parts"
# What XLA says where an allocation fails, in compiling too: it tries kernels out.
_EXHAUSTED = re.compile(r"RESOURCE_EXHAUSTED: (Out of memory[^\n\[]*)")


@functools.cache
def host_bytes() -> int:
    """The memory of this host, with what it may swap out."""
    return int(psutil.virtual_memory().total + psutil.swap_memory().total)


def check(program: Program, jax_device: Any) -> None:
    """Raise OutOfMemoryError for a compiled program that needs more than its device has.

    Args:
        jax_device: a `jax.Device`. What other programs hold of it is not counted.
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

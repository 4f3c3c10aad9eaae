"""Programs that no memory of the host could hold are refused before they run.

XLA's CPU client would wait for ever for a buffer that the system does not give it.
"""

import functools
from typing import Any

import psutil

from torch_xdist.core.programs.program_cache import Program
from torch_xdist.errors import OutOfMemoryError
from torch_xdist.platforms import Choices


@functools.cache
def host_bytes() -> int:
    """The memory of this host, with what it may swap out."""
    return int(psutil.virtual_memory().total + psutil.swap_memory().total)


def check(program: Program, choices: Choices) -> None:
    """Raise OutOfMemoryError for a compiled program that needs more than the host has."""
    if not choices.is_host:
        return
    sizes: Any = program.memory()
    if sizes is None:
        return
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    between = sizes.temp_size_in_bytes
    if results + between > host_bytes():
        raise OutOfMemoryError(
            f"Error preparing computation: Out of memory allocating {results + between} bytes:"
            f" {results} for results, {between} for values in between, where this host has"
            f" {host_bytes()} in all; delete tensors that are not needed before the step ends,"
            " or compute in parts"
        )

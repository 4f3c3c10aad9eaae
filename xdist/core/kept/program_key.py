"""Under what a compiled program is found on disk before JAX has traced anything of it.

The key says all that a program is made of, so that nothing else can have it: its rows, described
(`description`), the types of what it is called with, which buffers are donated, what is returned,
the device, the state of torch and JAX that counts, the flags of XLA, this package's source.
Releases and the processor are in the stamp of the store. Where a part has no description (a user's
JAX function, notes for profiles, arrays spread over devices), there is no key, and the program is
found under JAX's own, which takes tracing and lowering.
"""

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import torch

import torch_xdist
from torch_xdist import world
from torch_xdist.core.kept import on_disk
from torch_xdist.core.trace import global_state
from torch_xdist.core.trace.description import UndescribableError, described
from torch_xdist.core.trace.notes import notes_of
from torch_xdist.core.trace.trace import Tape, rows_of
from torch_xdist.core.trace.values import Device

# Of the environment: what XLA reads.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS", "JAX_PLATFORMS")
# Settings of JAX that say nothing of a program: where it keeps what, and what it tells.
_UNTOLD = ("cache", "log", "traceback", "dump", "debug_leaked", "distributed", "pprint")


def of(tape: Tape, device: Device, call: tuple[Any, ...], signature: Sequence[Any]) -> str:
    """The key of the program of a tape on a device that is one; "" where it has none.

    Args:
        call: the slots of its leaves, which of them are donated, and the slots of its results.
        signature: the types of what it is called with.
    """
    if not on_disk.is_on() or notes_of(tape.entries) or jax.process_count() > 1:
        return ""
    try:
        parts = [repr(call), *_rows(tape), *_surroundings(tape, device)]
    except UndescribableError:
        return ""
    parts += [f"{x.dtype}{x.shape}" for x in jax.tree.leaves(signature)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=24).hexdigest()


def _rows(tape: Tape) -> Iterator[str]:
    for slot, row in rows_of(tape.entries):
        yield f"{slot} {described(row[0])} {row[1:]}"


def _surroundings(tape: Tape, device: Device) -> Iterator[str]:
    of_jax = device.jax
    yield f"{of_jax.platform} {of_jax.device_kind} {of_jax.id} {of_jax.client.platform_version}"
    yield described(global_state.of_program(device.choices))
    yield described(torch.get_default_dtype())
    if tape.collectives:
        yield f"{world.world_size()} ranks over {world.transport()}"
    yield from _of_jax()
    yield from (f"{name}={os.environ.get(name)}" for name in _VARIABLES)
    yield source()


def _of_jax() -> list[str]:
    """All settings of JAX that may count."""
    values: dict[str, Any] = jax.config.values  # type: ignore[attr-defined]
    told = (name for name in sorted(values) if not any(part in name for part in _UNTOLD))
    return [f"{name} {values[name]!r}" for name in told]


@functools.cache
def source() -> str:
    """What stands for the source of this package: its files, and when each was last changed.

    A change sets the time of the inode, which nobody can set back.
    """
    parts = sorted(_files(os.path.dirname(torch_xdist.__file__)))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=24).hexdigest()


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir():
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                stat = entry.stat()
                name = Path(entry.path).name
                yield f"{folder}/{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"

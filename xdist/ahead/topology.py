"""The devices of a TPU that is not here, as its compiler describes them.

Neither JAX's platform nor this process' devices are touched. This module loads no torch: the
compiler's own process uses it too.
"""

import contextlib
import ctypes
import functools
import importlib.util
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
from jax.experimental import topologies

from torch_xdist.errors import ArgumentError, DeviceError

# libtpu asks the cloud's metadata server, which is nowhere near, and complains at length of what
# it does not find there.
_ALONE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    # Else one process of the machine alone may load it; these touch no chip.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class Topology(NamedTuple):
    """The name of one slice, such as "v5e:2x4", and how many of them there are."""

    name: str
    slices: int = 1

    def __str__(self) -> str:
        return self.name if self.slices == 1 else f"{self.slices} slices of {self.name}"


def why_missing() -> str:
    """Why nothing can be compiled for TPUs here; "" where it can."""
    if importlib.util.find_spec("libtpu") is None:
        return "libtpu, the TPU compiler, is not installed: pip install 'torch-xdist[tpu]'"
    return ""


@functools.cache
def devices(topology: Topology) -> Sequence[jax.Device]:
    """Its devices, slice by slice. They compile, and hold nothing.

    Raises:
        DeviceError: libtpu is not installed.
        ArgumentError: it knows no such topology.
    """
    missing = why_missing()
    if missing:
        raise DeviceError(f"{topology}: {missing}")
    several = {"num_slices": topology.slices} if topology.slices > 1 else {}
    try:
        with _alone():
            found = topologies.get_topology_desc(
                platform="tpu", topology_name=topology.name, **several
            )
    except Exception as error:
        raise ArgumentError(
            f"topology {topology.name!r}: libtpu cannot describe it"
            f" ({str(error).splitlines()[0]}); name it like v5e:2x4, v4:2x2x1, v5p:2x2x1 or v6e:2x2"
        ) from error
    return tuple(found.devices)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """What libtpu reads of the environment while it is loaded; processes started later get none,
    nor what it has put there itself.
    """
    before = {name: os.environ.get(name) for name in _ALONE}
    os.environ.update(_ALONE)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        for name in _names_of_process() - {*os.environ}:
            os.unsetenv(name)


def _names_of_process() -> set[str]:
    """The variables that a process started now inherits: those, too, that Python knows nothing of.

    Where it does not find a worker's number libtpu puts a warning in its place.
    """
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found = itertools.takewhile(
        lambda entry: entry is not None, map(entries.__getitem__, itertools.count())
    )
    return {os.fsdecode(entry.partition(b"=")[0]) for entry in found}

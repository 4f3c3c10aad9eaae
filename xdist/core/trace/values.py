"""Values: what device tensors point at.

A `Value` is the content of one storage: a JAX buffer, or the slot of the row that will make it.
Tensors that share memory share the value, or have a `ViewValue` that reads it through a view step.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import torch

from torch_xdist import platforms
from torch_xdist.core.trace.tensor_types import TensorType


class Device:
    """One xla device.

    Attributes:
        index: in this process.
        jax: JAX's device.
        random: its random numbers.
        torch, lazy: what its tensors say they are on, and what they are on underneath.
        layout: the devices it stands for (`xr.use_spmd`); None where it is one.
        choices: what depends on the platform that its programs are for.
        peers: the devices of all ranks, where programs are not compiled for those of this job.
    """

    __slots__ = ("choices", "index", "jax", "layout", "lazy", "peers", "random", "torch")

    def __init__(self, index: int, jax_device: jax.Device, random: Any) -> None:
        self.index = index
        self.jax = jax_device
        self.random = random
        self.torch = torch.device("xla", index)
        self.lazy = torch.device("lazy", index)
        # A Layout, which is above this folder.
        self.layout: Any = None
        self.choices = platforms.of(jax_device.platform)
        self.peers: tuple[jax.Device, ...] = ()

    def __repr__(self) -> str:
        return f"xla:{self.index}"


def hardware_name(device: jax.Device) -> str:
    """A JAX device as torch_xla names it: "CPU:0", "TPU:3", "CUDA:1"."""
    platform = device.platform.upper()
    return f"{'CUDA' if platform == 'GPU' else platform}:{device.id}"


class Value:
    """The content of a storage.

    `buffer` is it where it is known. Otherwise it is pending: `trace` has a tape whose epoch is
    `epoch`, and `slot` is its place there. A value with a buffer has a slot too once it was an
    operand. A write in place moves it to another slot and raises `generation`, by which views
    notice. `listed` is the last epoch whose tape lists it. `tiling` is how its buffers shall lie,
    where the user said it.
    """

    __slots__ = (
        "__weakref__", "address", "buffer", "epoch", "generation", "listed", "parent", "slot",
        "tiling", "trace", "type",
    )  # fmt: skip
    # None but for views. A slot, not a constant of the class: each operator reads it, and Python
    # has a short way to slots alone.
    parent: "Value | None"
    # Unset until somebody asks for the one, or sets the other.
    address: int
    tiling: Any

    # `trace` is a Trace, which is made of values.
    def __init__(self, type_: TensorType, trace: Any, slot: int = -1, epoch: int = 0) -> None:
        self.type = type_
        self.trace = trace
        self.slot = slot
        self.epoch = epoch
        self.listed = epoch
        self.buffer: jax.Array | None = None
        self.generation = 0
        self.parent = None


class RootValue(Value):
    """One that a row or an upload made.

    Each refers to this class, so its number of references tells how many there are.
    """

    __slots__ = ()


class ViewValue(Value):
    """A value that reads and writes through `parent` by one view step, a plan of a view operator.

    Its slot is a cache, good while `seen` is the root's generation. It has no buffer and no
    generation of its own, so those of its fields stay unset. A class of views whose reading is
    more than one row of one operand has a `reader`, which records it and sets the slot.
    """

    __slots__ = ("root", "seen", "step")
    buffer: None = None  # type: ignore[misc]
    reader: ClassVar[Callable[[Any, Any], int] | None] = None

    def __init__(self, type_: TensorType, parent: Value, step: Any) -> None:
        self.type = type_
        self.trace = parent.trace
        self.slot = -1
        self.epoch = 0
        self.parent = parent
        self.root: Value = parent.root if parent.parent is not None else parent  # type: ignore[attr-defined]
        self.step = step
        self.seen = -1


def root_of(value: Value) -> Value:
    """The value that owns the storage a value looks into."""
    return value.root if isinstance(value, ViewValue) else value


def last_write(tensor: Any) -> int:
    """Where a body's tensor was last written: another number after each write to it.

    torch's `_version` counts none of those to running statistics.
    """
    return root_of(tensor.value).slot

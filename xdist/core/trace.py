"""Kinds, cells and the trace: the data the lazy core is made of.

A `Kind` is an interned tensor type. A `Cell` is what a device tensor points at: it holds a JAX
buffer, or the slot of a pending row. A `Trace` is the tape of pending rows of one device. It lists
the cells of its epoch, and a cell that nothing but this list refers to is dead: so what is alive
at a cut is exactly what a user can still see.
"""

import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import torch

_epochs = itertools.count(1)
_kinds: dict[tuple[Any, ...], "Kind"] = {}


class Kind:
    """The type of a tensor: shape, torch dtype, nominal strides and storage offset. Interned."""

    __slots__ = ("dtype", "meta", "numel", "offset", "shape", "stride", "wrap_stride")

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...], offset: int
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.stride = stride
        self.offset = offset
        # torch makes a wrapper sooner when it may compute row-major strides itself.
        plain = offset == 0 and stride == contiguous_strides(shape)
        self.wrap_stride = None if plain else stride
        numel = 1
        for size in shape:
            numel *= size
        self.numel = numel
        # Shared by every inference, so nothing may write to it.
        self.meta = meta_tensor(shape, dtype, stride, offset)

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def meta_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...], offset: int = 0
) -> torch.Tensor:
    """A meta tensor with this layout, at its offset in a storage just large enough."""
    if offset == 0:
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride) if n > 0)
    whole = torch.empty(reach, dtype=dtype, device="meta")
    return whole.as_strided(shape, stride, offset)


def kind_of(
    shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...], offset: int = 0
) -> Kind:
    """The one Kind of this type."""
    key = (shape, dtype, stride, offset)
    kind = _kinds.get(key)
    if kind is None:
        kind = _kinds.setdefault(key, Kind(shape, dtype, stride, offset))
    return kind


def dense_kind(shape: tuple[int, ...], dtype: torch.dtype) -> Kind:
    """The Kind of a contiguous tensor."""
    return kind_of(shape, dtype, contiguous_strides(shape))


def kind_of_meta(meta: torch.Tensor) -> Kind:
    """The Kind of a tensor as torch's meta kernels describe it."""
    return kind_of(tuple(meta.shape), meta.dtype, meta.stride(), int(meta.storage_offset()))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, as torch counts them (a size of 0 counts as 1)."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Cell:
    """The value of a storage: a buffer, or the slot of the row that will make it.

    `slot` counts only while `epoch` is the trace's epoch. An in-place write moves the cell to
    another slot and raises `generation`, by which views notice. `listed` is the last epoch whose
    list of cells it stands in; whoever makes a pending cell enters it there.
    """

    __slots__ = ("buffer", "epoch", "generation", "kind", "listed", "slot", "trace")
    parent: ClassVar["Cell | None"] = None

    def __init__(self, kind: Kind, trace: "Trace", slot: int = -1, epoch: int = 0) -> None:
        self.kind = kind
        self.trace = trace
        self.slot = slot
        self.epoch = epoch
        self.listed = epoch
        self.buffer: jax.Array | None = None
        self.generation = 0


class View(Cell):
    """A cell that reads and writes through `parent` by one view step (a plan of a view operator).

    Its slot is a cache, good while `seen` is the root's generation. It has no buffer and no
    generation of its own, so those of its slots stay unset. A class of views whose reading is more
    than one row of one operand has a `reader`, which records it and sets the slot.
    """

    __slots__ = ("parent", "root", "seen", "step")
    reader: ClassVar[Callable[[Any], int] | None] = None

    def __init__(self, kind: Kind, parent: Cell, step: Any) -> None:
        self.kind = kind
        self.trace = parent.trace
        self.slot = -1
        self.epoch = 0
        self.parent = parent  # type: ignore[misc]
        self.root: Cell = parent.root if parent.parent is not None else parent  # type: ignore[attr-defined]
        self.step = step
        self.seen = -1


class Trace:
    """The pending rows of one device.

    A row is the tuple (plan, slot of each tensor operand ...); its results take the next slots.
    Runtime scalars stand in two lists in the order of the rows that use them.
    """

    __slots__ = (
        "captures",
        "collectives",
        "device_index",
        "epoch",
        "floats",
        "ints",
        "is_paper",
        "leaf_buffers",
        "leaf_kinds",
        "leaf_slots",
        "limit",
        "listed",
        "lock",
        "next_slot",
        "places",
        "rng",
        "rows",
    )

    def __init__(
        self,
        device_index: int,
        rng: Any = None,
        *,
        is_paper: bool = False,
        limit: int = sys.maxsize,
    ) -> None:
        self.device_index = device_index
        # How many slots may be pending before a cut is forced.
        self.limit = limit
        self.rng = rng
        # A paper trace has no buffers: it records what a decomposition does.
        self.is_paper = is_paper
        # While a body of control flow is recorded: cells of the user's trace -> their stand-ins.
        self.captures: dict[int, tuple[Any, Cell]] | None = None
        self.lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        """Forget every row; cells that still point into the old epoch become stale."""
        self.epoch = next(_epochs)
        self.rows: list[tuple[Any, ...]] = []
        self.listed: list[Cell] = []
        self.leaf_slots: list[int] = []
        self.leaf_kinds: list[Kind] = []
        self.leaf_buffers: list[jax.Array | None] = []
        self.floats: list[float] = []
        self.ints: list[int] = []
        self.next_slot = 0
        self.collectives = 0
        # Where each collective row was recorded: slot -> "file:line".
        self.places: dict[int, str] = {}

    def new_cell(self, kind: Kind) -> Cell:
        """A cell for the next slot."""
        slot = self.next_slot
        self.next_slot = slot + 1
        cell = Cell(kind, self, slot, self.epoch)
        self.listed.append(cell)
        return cell

    def capture(self, tensor: Any) -> Cell:
        """The stand-in on this paper of a tensor of the user's trace; it keeps its gradient."""
        assert self.captures is not None
        if id(tensor) not in self.captures:
            kind = dense_kind(tensor.cell.kind.shape, tensor.cell.kind.dtype)
            self.captures[id(tensor)] = (tensor, self.new_cell(kind))
        return self.captures[id(tensor)][1]

    def enter_leaf(self, cell: Cell) -> int:
        """Give a cell that holds a buffer a slot in this epoch."""
        slot = self.next_slot
        self.next_slot = slot + 1
        self.leaf_slots.append(slot)
        self.leaf_kinds.append(cell.kind)
        self.leaf_buffers.append(cell.buffer)
        cell.slot = slot
        cell.epoch = self.epoch
        return slot

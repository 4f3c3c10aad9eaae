"""Paper: a trace without buffers, on which a decomposition is recorded once per plan.

Factories that a decomposition calls on an xla device land on the paper of the recording thread,
not in the user's trace.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_xdist.core import device
from torch_xdist.core.plan import Plan, Slot, flat, number_types
from torch_xdist.core.tensor import XlaTensor, wrap
from torch_xdist.core.trace import Kind, Trace, dense_kind
from torch_xdist.core.views import slot_of
from torch_xdist.core.walk import Numbers, result_slots, walk


class _PaperGenerator:
    """Numbers the random rows on a sheet; the key comes from the row the sheet stands for."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> tuple[int, int]:
        self.count += 1
        return 0, self.count


class Sheet:
    """A recorded decomposition: rows, where the operands are, and the slots of the results."""

    def __init__(
        self, trace: Trace, operand_slots: Sequence[int], outs: Sequence[int | None]
    ) -> None:
        self.rows = trace.rows
        self.floats = trace.floats
        self.ints = trace.ints
        self.constants = [
            (slot, buffer)
            for slot, buffer in zip(trace.leaf_slots, trace.leaf_buffers)
            if buffer is not None
        ]
        self.operand_slots = operand_slots
        self.outs = outs
        leaf_slots = set(trace.leaf_slots) | set(operand_slots)
        self.starts = result_slots(trace.rows, leaf_slots)
        self.number_types = {row[0]: number_types(row[0]) for row in trace.rows}

    def compute(self, operands: Sequence[jax.Array], key: Any) -> list[Any]:
        """The results as JAX arrays."""
        env: dict[int, Any] = dict(zip(self.operand_slots, operands))
        env.update(self.constants)
        numbers = _SheetNumbers(self.floats, self.ints, key)
        walk(self.rows, self.starts, env, numbers, self.number_types)
        return [None if slot is None else env[slot] for slot in self.outs]


class _SheetNumbers(Numbers):
    """Constants of the sheet; keys folded from the key of the whole row."""

    def __init__(self, floats: Sequence[float], ints: Sequence[int], key: Any) -> None:
        super().__init__(np.asarray(floats, np.float64), np.asarray(ints, np.int64))
        self.outer = key

    def key(self) -> jax.Array:
        self.take(int)
        return jax.random.fold_in(self.outer, self.take(int))


def record(plan: Plan, decompose: Callable[..., Any]) -> Sheet:
    """Run a decomposition on paper tensors of the plan's kinds."""
    trace = Trace(0, _PaperGenerator(), is_paper=True)
    cells = [trace.new_cell(kind) for kind in plan.operand_kinds]
    tensors = [wrap(cell) for cell in cells]
    args = [_fill(mark, tensors) for mark in plan.args]
    kwargs = {name: _fill(mark, tensors) for name, mark in plan.kwargs.items()}
    with device.on_paper(trace), torch.no_grad():
        result = decompose(*args, **kwargs)
    outs = [_out_slot(x) for x in flat(result)]
    return Sheet(trace, range(len(cells)), outs)


def _out_slot(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, XlaTensor):
        raise TypeError(f"a decomposition returned {type(value).__name__}, not an xla tensor")
    return slot_of(value.cell)


def _fill(mark: Any, tensors: Sequence[XlaTensor]) -> Any:
    if isinstance(mark, Slot):
        return tensors[mark.index]
    if isinstance(mark, tuple | list):
        return type(mark)(_fill(part, tensors) for part in mark)
    return mark


class Body:
    """A function recorded on paper: its sheet, what it read from outside, and what it returns."""

    def __init__(self, sheet: Sheet, captured: list[XlaTensor], result: Any) -> None:
        self.sheet = sheet
        self.captured = captured
        leaves, self._spec = pytree.tree_flatten(result)
        self.out_kinds = [leaf.cell.kind for leaf in leaves]

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return any(row[0].is_random for row in self.sheet.rows)

    def compute(self, operands: Sequence[jax.Array], key: jax.Array) -> list[Any]:
        """The results on JAX arrays: of the operands and then of what was captured.

        Its random rows draw from `key`.
        """
        return self.sheet.compute(operands, key)

    def rebuild(self, tensors: Sequence[Any]) -> Any:
        """Flat results in the structure the function returned."""
        return pytree.tree_unflatten(tensors, self._spec)


def record_body(function: Callable[..., Any], kinds: Sequence[Kind], like: XlaTensor) -> Body:
    """Run a function on paper tensors of these kinds, on the device of `like`.

    Tensors of the user's trace that it reads become operands, views it takes of them too: with
    gradients on, so that theirs reach what they are views of.
    """
    home = like.cell.trace
    trace = Trace(home.device_index, _PaperGenerator(), is_paper=True)
    cells = [trace.new_cell(dense_kind(k.shape, k.dtype)) for k in kinds]
    trace.captures = {}
    with device.on_paper(trace), torch.enable_grad():
        result = function(*[wrap(cell) for cell in cells])
        outs = [_out_slot(x) for x in pytree.tree_leaves(result)]
    captured = [outer for outer, _ in trace.captures.values()]
    slots = [*range(len(cells)), *(inner.slot for _, inner in trace.captures.values())]
    trace.captures = None
    return Body(Sheet(trace, slots, outs), captured, result)

"""Rows of many places along one dim are told their place by numbers that XLA does not know.

XLA compiles kernels of one form once, and a constant place is part of the form. A loop over time
that a script writes out reads `x[:, t]` for each time and may write `y[:, t]`: the first three
steps of a Mamba written out for 64 times took 7.8 s, and 3.9 with places that are read
(`ops/apart.py`), those of an LSTM of 48 times 7.4 and 3.4.

Numbers that a program is fed with, such as the rate in `p.add_(update, alpha=-lr)`, have places
too, among all numbers: but for those, the updates of an AdamW that goes from parameter to parameter
are kernels of one form (24 layers' first three steps 4.4 s, and 1.8 with places that are read).
"""

import functools
from collections import Counter
from collections.abc import Hashable, Sequence

import jax
from jax import lax

from torch_xdist.core.trace.plans import SINGLE, Param, Plan
from torch_xdist.core.trace.trace import Entry, rows_of
from torch_xdist.ops.apart import unknown

_READ = "aten.select.int"
_WRITE = "write.aten.select.int"
# Of fewer rows the kernels are few too.
_MANY = 8


def of_many(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The rows, of which those that read or write one of many places are told it so."""
    rows = {slot: row for slot, row in rows_of(entries) if _has_place(row[0])}
    kinds = {slot: _kind(row[0]) for slot, row in rows.items()}
    counts = Counter(kinds.values())
    changed: list[Entry] = []
    for slot, (plan, *operands) in rows.items():
        if counts[kinds[slot]] >= _MANY:
            changed = changed or list(entries)
            changed[slot] = (_told(plan), *operands)
    return changed or entries


def of_numbers(entries: Sequence[Entry]) -> frozenset[Plan]:
    """What many rows do, each with numbers of its own, which it is to read at a place like that."""
    counts = Counter(row[0] for _, row in rows_of(entries) if row[0].scalar_types)
    return frozenset(plan for plan, count in counts.items() if count >= _MANY)


def _has_place(plan: Plan) -> bool:
    is_one = plan.name in (_READ, _WRITE) and not plan.kwargs and not plan.scalar_types
    return is_one and all(isinstance(x, Param) for x in plan.args[: len(plan.operand_types)])


def _kind(plan: Plan) -> Hashable:
    """What such rows have in common but for their place."""
    types = tuple((x.shape, x.dtype) for x in plan.operand_types)
    return plan.name, plan.args[len(types)] % len(types[0][0]), types


def _told(plan: Plan) -> Plan:
    dim, index = plan.args[len(plan.operand_types) :]
    shape = plan.operand_types[0].shape
    dim %= len(shape)
    compute = functools.partial(_read if plan.name == _READ else _written, dim, index % shape[dim])
    args, name = plan.args[: len(plan.operand_types)], f"{plan.name} where a number says"
    types = plan.operand_types, plan.types
    return Plan(name, None, args, {}, *types, SINGLE, lowering=compute)


def _read(dim: int, index: int, whole: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(whole, unknown(index), dim, keepdims=False)


def _written(dim: int, index: int, whole: jax.Array, part: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(whole, part.astype(whole.dtype), unknown(index), dim)

"""Gradients of parts that are added up: parts that lie apart are put beside each other.

Of `x[:, t]` for each of T times, or of the two halves of `x`, autograd makes zeros as large as `x`
with the part's gradient in them, and adds these up: T times all of `x`. Steps of a Mamba written
out for 64 times took 21.7 ms so on a CPU, and take 15.3.

Parts that lie over each other are added in their order, as another would round otherwise. All that
may differ is the sign of a zero.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from torch_xdist.core.trace.plans import SINGLE, Param, Plan
from torch_xdist.core.trace.trace import Entry, Row, rows_of
from torch_xdist.ops.shape import span, spread

_SELECT = "aten.select_backward.default"
_SLICE = "aten.slice_backward.default"
_ADD = "aten.add.Tensor"
_Rows = Mapping[int, Row]


class _Part(NamedTuple):
    """Where along a dim a part lies; an index is one place along it, without the dim."""

    dim: int
    begin: int
    end: int
    is_index: bool


_Parts = Mapping[int, _Part]


def beside_each_other(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The rows, of which the last sum of several such gradients reads the parts themselves."""
    rows = dict(rows_of(entries))
    parts = {slot: part for slot, row in rows.items() if (part := _part(row[0]))}
    changed: list[Entry] = []
    for slot, terms in _sums(rows, parts).items():
        if sum(term in parts for term in terms) > 1:
            changed = changed or list(entries)
            changed[slot] = _joined(rows, slot, _groups(terms, parts), parts)
    return changed or entries


def _part(plan: Plan) -> _Part | None:
    """Where the gradient lies that a row puts among zeros; None for other rows."""
    if plan.name not in (_SELECT, _SLICE) or plan.kwargs or plan.scalar_types:
        return None
    shape, dim, *rest = plan.args[1:]
    dim %= len(shape)
    if plan.name == _SELECT:
        begin = rest[0] % shape[dim]
        return _Part(dim, begin, begin + 1, is_index=True)
    start, end, step = rest
    begin, size = span(shape[dim], start, end, step)
    return _Part(dim, begin, begin + size, is_index=False) if size and step == 1 else None


def _sums(rows: _Rows, parts: _Parts) -> dict[int, list[int]]:
    """What is added by the last row of each sum that begins with such a gradient, in order."""
    readers = Counter(itertools.chain.from_iterable(row[1:] for row in rows.values()))
    found: dict[int, list[int]] = {}
    for slot, row in rows.items():
        if not _adds(row[0]):
            continue
        before = next((x for x in row[1:] if x in found and readers[x] == 1), None)
        if before is not None:
            (other,) = [x for x in row[1:] if x != before]
            found[slot] = [*found.pop(before), other]
        elif not parts.keys().isdisjoint(row[1:]):
            found[slot] = [*row[1:]]
    return found


def _adds(plan: Plan) -> bool:
    """Whether a row adds two arrays of one type, and nothing else."""
    if plan.name != _ADD or plan.kwargs or not all(isinstance(x, Param) for x in plan.args):
        return False
    kinds = {(x.shape, x.dtype) for x in (*plan.operand_types, plan.types[0]) if x is not None}
    return len(kinds) == 1 and len(plan.operand_types) == 2


def _groups(terms: Sequence[int], parts: _Parts) -> list[list[int]]:
    """What may be put beside each other, or one array, in the order in which they are added."""
    groups: list[list[int]] = []
    taken: set[int] = set()
    for term in terms:
        part = parts.get(term)
        if part is None:
            # What lies apart has nothing of what it is added to but zeros: the order is the same.
            groups.insert(0 if len(groups) == 1 else len(groups), [term])
            continue
        places = range(part.begin, part.end)
        last = parts.get(groups[-1][0]) if groups else None
        if last is None or last.dim != part.dim or not taken.isdisjoint(places):
            groups.append([])
            taken = set()
        groups[-1].append(term)
        taken.update(places)
    return [sorted(group, key=lambda x: parts[x].begin if x in parts else 0) for group in groups]


def _joined(rows: _Rows, slot: int, groups: Sequence[Sequence[int]], parts: _Parts) -> Row:
    terms = [*itertools.chain.from_iterable(groups)]
    plan = rows[slot][0]
    types = [rows[x][0].operand_types[0] if x in parts else plan.types[0] for x in terms]
    compute = functools.partial(
        _added_up,
        [[parts.get(term) for term in group] for group in groups],
        plan.types[0].shape,
    )
    args = [[*map(Param, range(len(terms)))]]
    joined = Plan("gradients of parts", None, args, {}, types, plan.types, SINGLE, lowering=compute)
    return (joined, *[rows[x][1] if x in parts else x for x in terms])


def _added_up(
    groups: Sequence[Sequence[_Part | None]], shape: Sequence[int], arrays: Sequence[jax.Array]
) -> jax.Array:
    given = iter(arrays)
    sums = [_beside(group, shape, [*itertools.islice(given, len(group))]) for group in groups]
    return functools.reduce(jnp.add, sums)


def _beside(parts: Sequence[Any], shape: Sequence[int], arrays: Sequence[jax.Array]) -> jax.Array:
    """An array of `shape` with each of `arrays` in its place, and zeros around."""
    if parts[0] is None:
        return arrays[0]
    dim = parts[0].dim
    arrays = [jnp.expand_dims(x, dim) if p.is_index else x for x, p in zip(arrays, parts)]
    if len(parts) == 1:
        return spread(arrays[0], shape[dim], dim, parts[0].begin, 1, 0)
    pieces = []
    end = 0
    for array, part in zip(arrays, parts):
        pieces += [_zeros(shape, dim, part.begin - end, array.dtype), array]
        end = part.end
    pieces.append(_zeros(shape, dim, shape[dim] - end, arrays[0].dtype))
    return jnp.concatenate([piece for piece in pieces if piece.shape[dim]], dim)


def _zeros(shape: Sequence[int], dim: int, size: int, dtype: Any) -> jax.Array:
    return jnp.zeros((*shape[:dim], size, *shape[dim + 1 :]), dtype)

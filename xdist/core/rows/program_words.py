"""A program in words, the same on every rank and in every process that records the same."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.trace import Entry, Row, rows_of, types_of


def fingerprint(entries: Sequence[Entry]) -> str:
    """The hash of a graph: of all it computes, whatever its runtime scalars are."""
    return digest(describe(row) for _, row in rows_of(entries))


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def describe(row: Row) -> str:
    """One row in words, the same on every rank that records the same."""
    return f"{_words(row[0])} {row[1:]}"


def _words(static: Any) -> str:
    """A plan with its arguments, among which those of control flow have plans of their own."""
    if isinstance(static, Plan):
        named = tuple(sorted(static.kwargs.items()))
        return f"{static!r} {_words(static.args)} {_words(named)}"
    if isinstance(static, tuple | list):
        return f"({', '.join(map(_words, static))})"
    return repr(static)


def call(plan: Plan) -> str:
    """A collective in words, the same on every rank that records the same."""
    return f"{plan!r} {plan.args[-1]}".removeprefix("xla.")


def over_layout(
    entries: Sequence[Entry], slots: Sequence[int], leaves: Sequence[Any], layout: Any
) -> str:
    """A program of the logical device, the same on every process that records the same.

    Args:
        slots: of its leaves.
        leaves: how each lies: its sharding, its shape, and whether it is parts (`Placement`).
    """
    types = types_of(entries)
    shapes = (
        f"{types[slot]} {layout.tiling(sharding, len(shape)).text}"
        for slot, (sharding, shape, _) in zip(slots, leaves)
    )
    found = ", ".join(f"{n} x {text}" for text, n in sorted(Counter(shapes).items()))
    return f"program {fingerprint(entries)[:8]} of {len(rows_of(entries))} rows and of {found}"

"""Permuted stacks: the parts are permuted, then stacked along the dimension where they end up.

Queries, keys and values of one projection are taken apart by `view` and `permute`, so their
gradients come back as a stack, which is permuted. XLA would store the stack and transpose that;
of parts it writes the result at once.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.core.trace.plans import SINGLE, Plan
from torch_xdist.core.trace.trace import Entry, rows_of

_STACK = "aten.stack.default"
_PERMUTE = "aten.permute.default"


def by_parts(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The rows, of which those permutes read the parts of their stacks."""
    rows = dict(rows_of(entries))
    changed: list[Entry] = []
    plans: dict[tuple[Plan, Plan], Plan] = {}
    for slot, row in rows.items():
        stack = rows.get(row[1]) if row[0].name == _PERMUTE else None
        if stack is not None and stack[0].name == _STACK:
            both = stack[0], row[0]
            if both not in plans:
                plans[both] = _permuted(*both)
            changed = changed or list(entries)
            changed[slot] = (plans[both], *stack[1:])
    return changed or entries


def _permuted(stack: Plan, permute: Plan) -> Plan:
    rank = len(permute.operand_types[0].shape)
    along = (stack.args[1] if len(stack.args) > 1 else stack.kwargs.get("dim", 0)) % rank
    dims = [dim % rank for dim in permute.args[1]]
    of_parts = [dim - (dim > along) for dim in dims if dim != along]

    def compute(*parts: jax.Array) -> Any:
        return jnp.stack([part.transpose(of_parts) for part in parts], dims.index(along))

    # Of this program alone: no row of a tape has it.
    types = stack.operand_types, permute.types
    return Plan("permuted stack", None, stack.args[0], {}, *types, SINGLE, lowering=compute)

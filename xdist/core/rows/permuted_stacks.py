"""Permuted stacks: the parts are permuted, then stacked along the dimension where they end up.

Queries, keys and values of one projection are taken apart by `view` and `permute`, so their
gradients come back as a stack, which is permuted. XLA would store the stack and transpose that;
of parts it writes the result at once.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.core.rows.joined_rows import Found, Rows, joined
from torch_xdist.core.trace.plans import SINGLE, Plan
from torch_xdist.core.trace.trace import Entry, Row

_STACK = "aten.stack.default"
_PERMUTE = "aten.permute.default"


def by_parts(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The rows, of which those permutes read the parts of their stacks."""
    return joined(entries, _look, _permuted)


def _look(rows: Rows, row: Row) -> Found | None:
    stack = rows.get(row[1]) if row[0].name == _PERMUTE else None
    if stack is None or stack[0].name != _STACK:
        return None
    return (stack[0], row[0]), stack[1:]


def _permuted(stack: Plan, permute: Plan) -> Plan:
    rank = len(permute.operand_types[0].shape)
    along = (stack.args[1] if len(stack.args) > 1 else stack.kwargs.get("dim", 0)) % rank
    dims = [dim % rank for dim in permute.args[1]]
    of_parts = [dim - (dim > along) for dim in dims if dim != along]

    def compute(*parts: jax.Array) -> Any:
        return jnp.stack([part.transpose(of_parts) for part in parts], dims.index(along))

    types = stack.operand_types, permute.types
    return Plan("permuted stack", None, stack.args[0], {}, *types, SINGLE, lowering=compute)

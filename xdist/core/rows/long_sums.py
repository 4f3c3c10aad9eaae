"""Sums over dims behind which many numbers lie are XLA's own on a CPU (`ops/long_sums.py`).

Here and not in the table: XLA has no sum over several devices in those words.
"""

from collections.abc import Sequence

import torch

from torch_xdist.core.trace.plans import Param, Plan
from torch_xdist.core.trace.trace import Entry, rows_of
from torch_xdist.ops import long_sums

_BETTER = {
    "aten.sum.dim_IntList": long_sums.long_sum,
    "aten.mean.dim": long_sums.long_mean,
}
_DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})


def by_xla(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The rows, of which such sums are XLA's own."""
    changed: list[Entry] = []
    for slot, (plan, *operands) in rows_of(entries):
        if plan.name in _BETTER and _is_long(plan):
            changed = changed or list(entries)
            changed[slot] = (_own(plan), *operands)
    return changed or entries


def _is_long(plan: Plan) -> bool:
    if len(plan.operand_types) != 1 or not isinstance(plan.args[0], Param) or len(plan.args) < 2:
        return False
    summed, (result,) = plan.operand_types[0], plan.types
    are_floats = summed.dtype in _DTYPES and result is not None and result.dtype in _DTYPES
    return are_floats and long_sums.are_long(summed.shape, plan.args[1])


def _own(plan: Plan) -> Plan:
    return Plan(
        f"{plan.name} of long rows",
        None,
        plan.args,
        plan.kwargs,
        plan.operand_types,
        plan.types,
        plan.structure,
        lowering=_BETTER[plan.name],
    )

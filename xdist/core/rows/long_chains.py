"""Where in long chains of pointwise rows a CPU computes a result once.

XLA's fusion for CPUs puts what makes an array into each kernel that reads it. In a loop over time
that a script writes out, each state is read by the next one and by more, so kernels compute many
steps anew: those of two RWKV layers on 32 times had 500 instructions each, and their first three
steps took 44 s. A barrier now and then ends that (`ops/settled.py`): 12 s. What has products, sums
or normalizations in between has no such chains: of 14 kinds of nets four get barriers, 1 to 8.
"""

from collections import Counter
from collections.abc import Sequence

from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.trace import Entry, rows_of

# Operators that one reader would compute anew for a result.
_LONG = 16
# What XLA takes into the kernel of its reader, without an operator.
_MOVES = frozenset(
    f"aten.{name}"
    for name in "select.int slice.Tensor view.default expand.default unsqueeze.default squeeze.dim"
    " permute.default transpose.int t.default clone.default _to_copy.default"
    " select_backward.default slice_backward.default".split()
)
# What XLA computes once where several read it.
_EXPENSIVE = frozenset(
    f"aten.{name}"
    for name in "exp.default log.default tanh.default sigmoid.default erf.default sqrt.default"
    " rsqrt.default pow.Tensor_Scalar div.Tensor gelu.default silu.default".split()
)


def to_settle(entries: Sequence[Entry]) -> frozenset[int]:
    """The slots of results that are to be computed once, however many rows read them."""
    rows = rows_of(entries)
    readers = Counter(operand for _, row in rows for operand in {*row[1:]})
    # How many operators a reader of each slot would compute anew; none of what stays in memory.
    anew: dict[int, int] = {}
    found = set()
    for slot, (plan, *operands) in rows:
        own = _operators(plan)
        if own is None:
            continue
        count = own + sum(anew.get(operand, 0) for operand in operands)
        is_shared = own > 0 and readers[slot] > 1
        if is_shared and plan.name in _EXPENSIVE:
            continue
        if is_shared and count >= _LONG:
            found.add(slot)
            continue
        anew[slot] = count
    return frozenset(found)


def _operators(plan: Plan) -> int | None:
    """Of a row that XLA may compute in another's kernel; None for others."""
    if plan.op is not None and plan.op.is_pointwise:
        return 1
    return 0 if plan.name in _MOVES else None

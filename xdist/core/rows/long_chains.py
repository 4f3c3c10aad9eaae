"""Where in long chains of pointwise rows a CPU computes a result once.

XLA's fusion for CPUs puts what makes an array into each kernel that reads it. In a loop over time
that a script writes out, each state is read by the next one and by more, so kernels compute many
steps anew: those of two RWKV layers on 32 times had 500 instructions each, and their first three
steps took 44 s. A barrier now and then ends that (`ops/settled.py`): 12 s.

What a library reads, a matrix product for example, XLA computes once by itself. But where windows
are cut out, rolled or masked in between, nothing else ends the sum that goes through all layers of
a net: kernels of a Swin read up to 26 arrays for each number, and its steps took 1.23 to 1.36 times
as long as with a barrier where four are read (`docs/optimizations.md`).
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.trace import Entry, rows_of, types_of

# Operators that one reader would compute anew for a result.
_LONG = 16
# Operators that one kernel would compute, whoever reads: LLVM's time grows faster than they do.
_TOO_LONG = 128
# Arrays that it would read for a result, of half as many numbers at least.
_MANY = 4
# Of fewer numbers to read them again costs nothing.
_LARGE = 2**13
# What XLA takes into the kernel of its reader, without an operator.
_MOVES = frozenset(
    f"aten.{name}"
    for name in "select.int slice.Tensor view.default expand.default unsqueeze.default squeeze.dim"
    " permute.default transpose.int t.default clone.default _to_copy.default roll.default"
    " select_backward.default slice_backward.default constant_pad_nd.default".split()
)
# Operators of which XLA takes the last part into the kernel of their reader.
_IN_PART = frozenset(
    f"aten.{name}"
    for name in "native_layer_norm.default native_layer_norm_backward.default"
    " native_group_norm.default native_group_norm_backward.default".split()
)
_OF_A_PART = 4
# What XLA computes once where several read it.
_EXPENSIVE = frozenset(
    f"aten.{name}"
    for name in "exp.default log.default tanh.default sigmoid.default erf.default sqrt.default"
    " rsqrt.default pow.Tensor_Scalar div.Tensor gelu.default silu.default".split()
)


class _Chain(NamedTuple):
    """What a reader of a result would do anew.

    Attributes:
        operators: how many it would compute; none of what stays in memory.
        arrays: the slots of some that it would read.
    """

    operators: int
    arrays: frozenset[int]


def to_settle(entries: Sequence[Entry]) -> frozenset[int]:
    """The slots of results that are to be computed once, however many rows read them."""
    rows, types = rows_of(entries), types_of(entries)
    readers = Counter(operand for _, row in rows for operand in {*row[1:]})
    chains: dict[int, _Chain] = {}
    found = set()
    for slot, (plan, *operands) in rows:
        own = _operators(plan)
        if own is None or slot not in types:  # A gradient that nobody asked for has none.
            continue
        numbers = types[slot].numel
        before = [
            chains.get(operand) or _Chain(0, frozenset((operand,))) for operand in {*operands}
        ]
        count = own + sum(chain.operators for chain in before)
        read = {one for chain in before for one in chain.arrays if types[one].numel * 2 >= numbers}
        if count and readers[slot] > 1:
            if plan.name in _EXPENSIVE:
                continue
            if count >= _LONG or (len(read) >= _MANY and numbers >= _LARGE):
                found.add(slot)
                continue
        if count >= _TOO_LONG:
            found.add(slot)
            continue
        chains[slot] = _Chain(count, frozenset(itertools.islice(read, _MANY)))
    return frozenset(found)


def _operators(plan: Plan) -> int | None:
    """Of a row that XLA may compute in another's kernel; None for others."""
    if plan.op is not None and plan.op.is_pointwise:
        return 1
    if plan.name in _IN_PART:
        return _OF_A_PART
    return 0 if plan.name in _MOVES else None

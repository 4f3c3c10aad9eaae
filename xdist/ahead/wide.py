"""Operations on arrays of 64-bit integers inside a lowered program, which a TPU does in several.

XLA makes two arrays of 32 bits of each there, so in the compiled program they are hard to tell from
others. They are counted before that, in StableHLO.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

# Arrays of 64-bit integers, but those of one element.
_WIDE = re.compile(r"tensor<(?!(?:1x)*u?i64>)[\dx?]+xu?i64>")
# What takes no computing on halves of 64 bits: one of them is taken, or a zero put beside it.
_FREE = frozenset(
    """
    func.call func.return stablehlo.constant stablehlo.convert stablehlo.reshape stablehlo.return
    stablehlo.broadcast_in_dim stablehlo.custom_call sdy.manual_computation sdy.return
    sdy.sharding_constraint
    """.split()
)


def inside(module: Any) -> dict[str, int]:
    """How many operations of each kind, by StableHLO's names, give or take such an array.

    Free are constants, casts, and what moves arrays as they are.

    Args:
        module: as JAX lowers it.
    """
    return dict(Counter(_name(op) for op in _operations(module.operation) if _counts(op)))


def _operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _operations(inner.operation)


def _counts(operation: Any) -> bool:
    if operation.name in _FREE:
        return False
    return any(map(_is_wide, [*operation.results, *operation.operands]))


def _is_wide(value: Any) -> bool:
    return _WIDE.fullmatch(str(value.type)) is not None


def _name(operation: Any) -> str:
    return str(operation.name).removeprefix("stablehlo.")

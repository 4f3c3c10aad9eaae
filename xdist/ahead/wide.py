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
# At the edges: what was made in 32 bits goes out as torch has it.
_MOVES = frozenset({"func.return", "sdy.sharding_constraint", "stablehlo.reshape"})
_FREE = frozenset({"stablehlo.constant", "stablehlo.return", "func.return", "stablehlo.convert"})


def inside(module: Any) -> dict[str, int]:
    """How many operations of each kind, by StableHLO's names, give or take such an array.

    Constants are free, and casts are where they lead out of the program or in.

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
    if operation.name == "stablehlo.convert":
        # Not the cast of an argument to 32 bits, and not one to 64 that nothing computes with.
        return _is_wide(operation.results[0]) and not _leads_out(operation.results[0])
    if operation.name in _MOVES:
        return False
    if operation.name in _FREE:
        return False
    return any(map(_is_wide, [*operation.results, *operation.operands]))


def _leads_out(value: Any) -> bool:
    return all(use.owner.name in _MOVES for use in value.uses)


def _is_wide(value: Any) -> bool:
    return _WIDE.fullmatch(str(value.type)) is not None


def _name(operation: Any) -> str:
    return str(operation.name).removeprefix("stablehlo.")

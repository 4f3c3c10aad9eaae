"""What would make a program fit that does not; each remedy is estimated from its facts. Pure.

They are estimates: what XLA makes of the changed program is known when that is compiled.

- A batch of 1/k: what a step makes on its way shrinks alike; parameters and their states stay.
- FSDP over n ranks: of parameters and states a rank has 1/n; what is gathered for a layer is not
  counted.
- Checkpoints: of m alike layers what m made is kept at some 2 sqrt(m) places, and made again.
  Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, section 3, arXiv:1604.06174.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch_xdist.launcher.rehearsal import estimate

_MOST_PARTS = 1024


class Remedy(NamedTuple):
    """What to do, and what a device would need then."""

    what: str
    needed_bytes: float


def of_program(found: Mapping[str, Any], usable_bytes: float, ranks: int) -> list[Remedy]:
    """The remedies for a program that needs more than there is, the mildest of each kind that fits;
    where none of a kind does, its strongest.
    """
    needed = estimate.needed_bytes(found)
    state = float(found["bytes"].get("state", 0))
    made = max(0.0, needed - state - found["bytes"]["held"] - found["bytes"].get("batch", 0))
    kinds = [
        [*_batches(needed, made)],
        [*_fsdp(needed, state, ranks)],
        [*_checkpoints(needed, made, found["largest"])],
    ]
    return [
        next((one for one in kind if one.needed_bytes <= usable_bytes), kind[-1])
        for kind in kinds
        if kind
    ]


def _batches(needed: float, made: float) -> Iterator[Remedy]:
    parts = 2
    while parts <= _MOST_PARTS and made:
        yield Remedy(f"a batch of 1/{parts}", needed - made * (1 - 1 / parts))
        parts *= 2


def _fsdp(needed: float, state: float, ranks: int) -> Iterator[Remedy]:
    if ranks > 1 and state:
        what = f"FSDP over {ranks} ranks (XlaFullyShardedDataParallel, or xs.mark_sharding)"
        yield Remedy(what, needed - state * (1 - 1 / ranks))


def _checkpoints(needed: float, made: float, largest: list[Mapping[str, Any]]) -> Iterator[Remedy]:
    alike = max((one["count"] for one in largest), default=1)
    kept = 2 * math.sqrt(alike)
    if kept < alike:
        what = f"torch_xla.utils.checkpoint around each of {alike} alike layers"
        yield Remedy(what, needed - made * (1 - kept / alike))

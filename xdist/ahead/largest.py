"""The largest arrays of a program, with the user's lines that made them."""

import heapq
import math
from collections import Counter
from typing import Any

from torch_xdist import dtypes
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.programs.locations import locations_of
from torch_xdist.core.trace.trace import types_of
from torch_xdist.core.trace.user_frames import is_user_file, shortened

# Of arrays, and of kinds of them that are told.
_LOOKED_AT, _COUNT = 200, 5


def of_launch(launch: Launch) -> list[dict[str, Any]]:
    """The largest first: "bytes" of a whole array, "type", "what" made it, "where", and "count".

    XLA may never make one of them (what it fuses), or share memory between them.
    """
    types = types_of(launch.entries)
    places = locations_of(launch.tape.entries)
    sizes = {
        slot: math.prod(kind.shape) * dtypes.to_jax(kind.dtype).itemsize
        for slot, kind in types.items()
    }
    arguments = {*launch.leaves}
    found: Counter[tuple[Any, ...]] = Counter()
    for slot in heapq.nlargest(_LOOKED_AT, sizes, key=sizes.__getitem__):
        place = places.get(slot)
        mine = [p for p in place.places if is_user_file(p[1])] if place else []
        kind = f"{str(types[slot].dtype).removeprefix('torch.')}{[*types[slot].shape]}"
        what = place.type.replace("__", "::") if place else "value"
        what = "argument" if slot in arguments else what
        where = shortened(f"{mine[0][1]}:{mine[0][2]}") if mine else "made before"
        found[sizes[slot], kind, what, where] += 1
    names = "bytes", "type", "what", "where"
    first = sorted(found.items(), key=lambda pair: -pair[0][0])[:_COUNT]
    return [{**dict(zip(names, one)), "count": count} for one, count in first]

"""Arrays that several tensors share since one was copied to the other, made each tensor's own.

A copy (`copy_`, `load_state_dict`) costs nothing here: both tensors have one array until one of
them is written. But the program that writes it then cannot write over it, and is another than that
of the other steps, which can: a model and the mean of its weights, that starts as a copy, a target
network after each hard update. So before a program is compiled, or found missing, the arrays are
copied that only such sharing keeps from being written over: this takes less than a compilation.
"""

import dataclasses
import gc
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch_xdist import metrics
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.programs.program import PROGRAMS
from torch_xdist.core.rows import aliases
from torch_xdist.core.trace import donation
from torch_xdist.core.trace.values import RootValue


def as_own(launch: Launch) -> Launch | None:
    """The launch that may write over arrays which tensors shared; None where there are none."""
    if launch.placement is not None or not donation.NOW.unreferenced:
        return None
    places = _wanted(launch)
    shared = _shared(launch, places) if places else {}
    if not shared or PROGRAMS.missed_again(launch.key()):
        return None
    buffers, mask = [*launch.buffers], [*launch.mask]
    for place, is_copied in shared.items():
        mask[place] = True
        if is_copied:
            buffers[place] = donation.copy_of(buffers[place], launch.device.jax)
    metrics.count("CopiedSharedArray", sum(shared.values()))
    return dataclasses.replace(launch, mask=tuple(mask), buffers=tuple(buffers))


def _wanted(launch: Launch) -> list[int]:
    """The places of shared leaves that are not given away, but would be of use."""
    given = zip(launch.mask, launch.buffers)
    if not any(not give and donation.is_shared(buffer) for give, buffer in given):
        return []
    leaves, results = launch.types()
    places = aliases.wanted(launch.mask, leaves, results)
    return [place for place in places if donation.is_shared(launch.buffers[place])]


def _shared(launch: Launch, places: Sequence[int]) -> dict[int, bool]:
    """Those of these places whose tensors were written since, while others have their arrays.

    Returns for each whether its array must be copied; where no tensor has it any more and several
    leaves are it, one takes it as it is.
    """
    buffers = launch.buffers
    candidates = {id(buffers[place]) for place in places}
    holders = [
        value
        for value in gc.get_referrers(*[buffers[place] for place in places])
        if isinstance(value, RootValue) and id(value.buffer) in candidates
    ]
    times, holds = Counter(map(id, buffers)), Counter(id(value.buffer) for value in holders)
    epoch = launch.tape.epoch
    reading = {value.slot for value in holders if value.epoch == epoch}
    counts = _counts(buffers)
    found: dict[int, bool] = {}
    for place in places:
        of = id(buffers[place])
        is_shared_alone = counts[place] == 3 * times[of] - 2 + holds[of]
        # Who reads a leaf of another tape is not known.
        is_read = launch.leaves[place] in reading or of in launch.tape.moved
        if is_shared_alone and not is_read:
            found[place] = True
    moving = Counter(id(buffers[place]) for place in found)
    for of in [of for of, count in moving.items() if not holds[of] and count == times[of]]:
        found[next(place for place in found if id(buffers[place]) == of)] = False
    return found


def _counts(buffers: Sequence[Any]) -> list[int]:
    """How many references each has more than an object that two lists hold.

    One of a tape has one by its tape, by its launch, and by the list here, at each of its places.
    """
    unreferenced = [object()]
    *counts, least = map(sys.getrefcount, [*buffers, unreferenced[0]])
    return [count - least for count in counts]

"""What one cut runs: a tape, the buffers it reads, and which of these it may write over."""

import dataclasses
import itertools
import operator
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch_xdist.core.programs.sharded_program import Placement, placement_of
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.trace import donation, global_state, placeholders
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Entry, Tape, types_of
from torch_xdist.core.trace.values import Device, Value


@dataclass(slots=True)
class Launch:
    """What one cut runs.

    Attributes:
        leaves: the slots of the leaves.
        mask: for each of them whether its buffer is given away ("donated", says JAX).
        outs: the slots whose values are wanted.
        buffers: of the leaves.
        placement: how leaves and results lie; None for a device that is one.
        wanted: the places of the results that were asked for, where a program has more of them;
            None for all.
    """

    tape: Tape
    device: Device
    entries: tuple[Entry, ...]
    leaves: tuple[int, ...]
    mask: tuple[bool, ...]
    outs: tuple[int, ...]
    buffers: tuple[Any, ...]
    placement: Placement | None = None
    wanted: tuple[int, ...] | None = None

    @property
    def donated(self) -> tuple[Any, ...]:
        """The buffers that are given away."""
        return tuple(itertools.compress(self.buffers, self.mask))

    @property
    def kept(self) -> tuple[Any, ...]:
        """The buffers that are not."""
        return tuple(itertools.compress(self.buffers, map(operator.not_, self.mask)))

    def key(self) -> tuple[Any, ...]:
        """What determines the program."""
        state = global_state.of_program(self.device.choices)
        here = self.placement if self.placement is not None else self.device.index
        return self.entries, self.leaves, self.mask, self.outs, here, state

    def types(self) -> tuple[list[TensorType], list[TensorType]]:
        """Of the leaves and of the results."""
        known = types_of(self.entries)
        return [known[slot] for slot in self.leaves], [known[slot] for slot in self.outs]

    def returning(self, outs: tuple[int, ...]) -> "Launch":
        """The launch that has these results, among them its own."""
        places = {slot: place for place, slot in enumerate(outs)}
        return dataclasses.replace(
            self, outs=outs, wanted=tuple(map(places.__getitem__, self.outs))
        )

    def named(self, slots: Sequence[int]) -> Sequence[int]:
        """What each result is, for those asked for: -1 where nobody did."""
        if self.wanted is None:
            return slots
        names = [-1] * len(self.outs)
        for place, slot in zip(self.wanted, slots, strict=True):
            names[place] = slot
        return names

    def giving(self, mask: tuple[bool, ...]) -> "Launch":
        """The launch that gives these buffers away."""
        return self if mask == self.mask else dataclasses.replace(self, mask=mask)


def held_values(tape: Tape) -> list[Value]:
    """The values a tape lists that something besides it still refers to, in order."""
    # Stands for a value that only the tape refers to. How many references `getrefcount` counts
    # then depends on the release of Python and on debuggers, so it is measured, not known.
    unreferenced = [Value.__new__(Value)]
    listed = [*tape.values, unreferenced[0]]
    counts = [*map(sys.getrefcount, listed)]
    return [*itertools.compress(listed, map(counts[-1].__lt__, counts))]


def live_values(tape: Tape) -> list[Value]:
    """The values of a tape that a run of it gives buffers: pending, and held by something."""
    epoch = tape.epoch
    # One that was written since, or whose storage was freed, is of another epoch.
    return [v for v in held_values(tape) if v.epoch == epoch and v.buffer is None]


def prepare(
    tape: Tape,
    device: Device,
    outs: Sequence[int],
    *,
    may_donate: bool,
    donated: Collection[int] = (),
    tilings: Mapping[int, Tiling] = MappingProxyType({}),
) -> Launch:
    """Decide which buffers are donated: those that nobody but the tape holds.

    Args:
        donated: the slots of leaves that are, whoever holds them.
        tilings: how results shall lie on the logical device, by slot.
    """
    leaves = tuple(tape.buffers)
    unreferenced = [object()]
    buffers: list[Any] = [*tape.buffers.values(), unreferenced[0]]
    *counts, least = map(sys.getrefcount, buffers)
    buffers.pop()
    if placeholders.are_alive() and may_donate:
        placeholders.check_none(buffers)
    mask = [False] * len(buffers)
    if may_donate:
        mask = donation.mask([*map(least.__ge__, counts)], buffers)
    if donated:
        mask = [slot in donated for slot in leaves]
    mask = donation.without_exported(mask, buffers)
    placement = None
    if device.layout is not None:
        buffers, placement = placement_of(buffers, device.layout, [*map(tilings.get, outs)])
    call = leaves, tuple(mask), tuple(outs)
    return Launch(tape, device, tuple(tape.entries), *call, tuple(buffers), placement)

"""Among whom a collective is: the ranks, or the devices that hold parts of a tensor cut by hand."""

from collections.abc import Iterable, Sequence

import torch

from torch_xdist import world
from torch_xdist.collectives.groups import Groups, checked, checked_pairs
from torch_xdist.core.run import manual_values
from torch_xdist.core.sharding.layout import Layout

GroupLists = Sequence[Sequence[int]] | None


def devices_by_hand(tensors: Iterable[torch.Tensor]) -> Layout | None:
    """The devices whose parts these tensors stand for; None where they are whole."""
    return manual_values.devices_of(t.value for t in tensors if hasattr(t, "value"))


def count(tensors: Iterable[torch.Tensor]) -> int:
    """How many take part in a collective of these tensors."""
    devices = devices_by_hand(tensors)
    return world.world_size() if devices is None else devices.count


def groups_of(
    name: str, groups: GroupLists, tensors: Iterable[torch.Tensor], *, any_order: bool = False
) -> Groups | None:
    """The groups as tuples; None where all ranks form one.

    Groups of devices lie along axes of the mesh, because XLA's collectives among devices of one
    program do. Raises ArgumentError for numbers that nobody has, ShardingError for other groups.

    Args:
        any_order: which member of its group one is does not matter.
    """
    devices = devices_by_hand(tensors)
    if devices is None:
        return checked(groups, world.world_size(), of=name)
    found = checked(groups, devices.count, of=name) or (tuple(devices.numbers),)
    if any_order:
        found = tuple(tuple(sorted(group, key=devices.order.index)) for group in found)
    devices.axes_of_groups(found)  # Raises.
    return found


def pairs_of(name: str, pairs: Sequence[Sequence[int]], tensors: Iterable[torch.Tensor]) -> Groups:
    """Pairs [source, target]. Raises as `groups_of` does, and for ends that are there twice."""
    devices = devices_by_hand(tensors)
    if devices is None:
        return checked_pairs(pairs, world.world_size(), of=name)
    devices.axes_of_groups((tuple(devices.numbers),))  # Raises.
    return checked_pairs(pairs, devices.count, of=name)

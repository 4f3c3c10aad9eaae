"""A launch as it would be on other devices than its own: its program is only lowered.

Its buffers stay where they are, so it cannot be run.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.programs.sharded_program import Placement
from torch_xdist.core.sharding.layout import Layout
from torch_xdist.core.trace.values import Device
from torch_xdist.errors import DeviceError


def retargeted(launch: Launch, devices: Sequence[jax.Device]) -> Launch:
    """The launch on these devices: those of all ranks, or those behind the logical device.

    Raises DeviceError where the logical device stands for another number of them.
    """
    here = launch.device
    there = Device(here.index, devices[0], here.random)
    placement = None
    if launch.placement is None:
        there.peers = tuple(devices)
    else:
        if len(devices) != here.layout.count:
            raise DeviceError(
                f"a program of {here.layout.count} devices for a topology of {len(devices)}: each"
                f" device stands for one; start with CPU_NUM_DEVICES={len(devices)}"
            )
        there.layout = here.layout.over(devices)
        placement = _moved(launch.placement, here.layout, there.layout)
    return dataclasses.replace(launch, device=there, placement=placement)


def _moved(placement: Placement, here: Layout, there: Layout) -> Placement:
    leaves: list[Any] = []
    for sharding, shape, is_parts in placement.leaves:
        tiling = here.tiling(sharding, len(shape))
        leaves.append((there.sharding(tiling), shape, is_parts))
    return Placement(tuple(leaves), placement.results)

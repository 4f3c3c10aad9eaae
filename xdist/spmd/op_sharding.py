"""A tiling as torch_xla's own object: `_XLAC.OpSharding`, made of nested lists of devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.errors import ShardingError


class ShardingType(IntEnum):
    """The kinds of shardings, with XLA's numbers."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


class OpSharding:
    """How a tensor is sharded.

    Args:
        tile_assignment: the devices; of TILED in the shape of the tiles.
        group_assignment: of PARTIAL: which group of devices has each tile.
        replication_groups: of PARTIAL: the devices of each group, which hold the same.
        sharding_type: a ShardingType; MAXIMAL, all of it on the one device there is, is REPLICATED.

    Raises ShardingError for TUPLE and UNKNOWN, and for PARTIAL without groups that fit its tiles.
    """

    def __init__(
        self,
        tile_assignment: Sequence[Any],
        group_assignment: Sequence[Any],
        replication_groups: Sequence[Any],
        sharding_type: int,
    ) -> None:
        self.type = ShardingType(sharding_type)
        if self.type in (ShardingType.TUPLE, ShardingType.UNKNOWN):
            raise ShardingError(
                f"OpSharding: a sharding of the kind {self.type.name} says nothing of one tensor;"
                " use REPLICATED, TILED, PARTIAL or MANUAL"
            )
        if self.type is ShardingType.MAXIMAL:
            self.type = ShardingType.REPLICATED
        # None for a whole copy on every device: it says nothing of the dims.
        self.tiling: Tiling | None = None
        if self.type is ShardingType.TILED:
            tiles = np.asarray(tile_assignment)
            self.tiling = Tiling(tiles.shape, tuple(tiles.ravel().tolist()))
        elif self.type is ShardingType.PARTIAL:
            groups = np.asarray(group_assignment)
            if groups.size != len(replication_groups) or not groups.size:
                raise ShardingError(
                    f"OpSharding: PARTIAL has {groups.size} tiles and {len(replication_groups)}"
                    " replication groups; give one group of devices for each tile"
                )
            devices = np.asarray(replication_groups)[groups.ravel()]
            self.tiling = Tiling(groups.shape, tuple(devices.ravel().tolist()))

    @classmethod
    def of(cls, tiling: Tiling) -> "OpSharding":
        """The object that means a tiling."""
        found = cls([], [], [], ShardingType.REPLICATED)
        found.type = type_of(tiling)
        found.tiling = None if tiling.is_replicated else tiling
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpSharding) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        if self.tiling is not None:
            return self.tiling.text
        return "{manual}" if self.type is ShardingType.MANUAL else "{replicated}"


def type_of(tiling: Tiling) -> ShardingType:
    """Its kind: REPLICATED, TILED, or PARTIAL where several devices hold each tile."""
    if not tiling.devices:
        return ShardingType.MANUAL
    if tiling.is_replicated:
        return ShardingType.REPLICATED
    return ShardingType.TILED if tiling.copies == 1 else ShardingType.PARTIAL


@dataclass
class XlaShardingSpec:
    """`_XLAC.XlaShardingSpec`: a sharding for one tensor of the host."""

    tensor: torch.Tensor
    sharding: OpSharding
    minibatch: bool = False

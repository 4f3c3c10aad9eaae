"""`xs.ShardingSpec`: how the tensors of a loader are sharded. It loads nothing of DTensor's."""

from dataclasses import dataclass, field

import torch

from torch_xdist import world
from torch_xdist.core.devices import ordinals
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.errors import ShardingError
from torch_xdist.spmd import marks
from torch_xdist.spmd.mesh import Mesh, PartitionSpec
from torch_xdist.spmd.op_sharding import OpSharding, ShardingType, XlaShardingSpec, type_of


@dataclass
class ShardingSpec:
    """How the tensors of a loader are sharded.

    Attributes:
        minibatch: each host loads only its own part of the batch.
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool | None = False
    tiling: Tiling = field(init=False)
    sharding_type: ShardingType = field(init=False)

    def __post_init__(self) -> None:
        self.partition_spec = tuple(self.partition_spec)
        self.tiling = self.mesh.tiling(self.partition_spec)
        self.sharding_type = type_of(self.tiling)

    def xla_spec(self, t: torch.Tensor) -> XlaShardingSpec | None:
        """The spec for one tensor; None where the tensor has another number of dims."""
        if not self.can_apply(t):
            return None
        return XlaShardingSpec(t, OpSharding.of(self.tiling), bool(self.minibatch))

    def can_apply(self, t: torch.Tensor) -> bool:
        """Whether it has an entry for each dim of the tensor."""
        return len(t.shape) == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> torch.Tensor | None:
        """`mark_sharding` of a device tensor; one with another number of dims stays as it is.

        Returns, for a `minibatch` of one of several processes, the batch that all have together.

        Raises ShardingError where a `minibatch` cannot be divided among the local devices.
        """
        if not self.can_apply(t):
            return None
        count = ordinals.addressable_runtime_device_count()
        if self.minibatch and t.dim() > 0 and t.shape[0] % count:
            raise ShardingError(
                "When minibatch is configured, the per-host batch size must be divisible by local"
                f" runtime device count. Per host input data shape = {list(t.shape)},"
                f" local_runtime_device_count = {count}"
            )
        if self.minibatch and t.dim() > 0 and world.shares_device():
            tiling = marks.tiling_over(self.mesh, self.partition_spec, "minibatch")
            return marks.of_all_processes(t, tiling)
        tensor = marks.on_device(marks.unwrapped(t), "mark_sharding")
        marks.mark(tensor, marks.tiling_over(self.mesh, self.partition_spec, "mark_sharding"))
        return None

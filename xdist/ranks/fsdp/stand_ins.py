"""torch_xla's parts of FSDP that scripts import: reductions in buckets, and stand-ins for them.

Our units exchange by `shards.Bundle`; these are for code that was written around torch_xla's own.
"""

from collections.abc import Callable
from typing import Any

import torch

from torch_xdist import world
from torch_xdist.collectives.errors import ArgumentError
from torch_xdist.ranks import collective_ops
from torch_xdist.ranks.members import GroupLists

_MB = 2**20
Callback = Callable[[torch.Tensor], Any]


class BucketizedReduceScatter:
    """Sums over the ranks, of which each rank gets its part along dim 0; several as one row.

    Args:
        bucket_size_mb: MiB of inputs that are collected before they go; 0: each goes at once.
        shard_count: the size of the groups.

    Attributes:
        scale: multiplies the sums.
    """

    def __init__(
        self, bucket_size_mb: float, shard_count: int, groups: GroupLists, pin_layout: bool
    ) -> None:
        self.bucket_size_bytes = bucket_size_mb * _MB
        self.shard_count = shard_count
        self.groups = groups
        self.pin_layout = pin_layout
        self.scale = 1.0
        self._waiting: list[tuple[torch.Tensor, Callback]] = []
        self._bytes = 0

    def __call__(self, input: torch.Tensor, callback: Callback) -> None:
        """Enter an input [n, ...]; `callback` gets this rank's part of the sum, when it goes."""
        self._waiting.append((input, callback))
        self._bytes += input.numel() * input.element_size()
        if self._bytes > self.bucket_size_bytes:
            self.flush()

    def flush(self) -> None:
        """Let go what waits."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        parts = collective_ops.reduce_scatter(
            collective_ops.REDUCE_SUM,
            [tensor for tensor, _ in waiting],
            self.scale,
            0,
            self.shard_count,
            self.groups,
            pin_layout=self.pin_layout,
        )
        for (_, callback), part in zip(waiting, parts):
            callback(part)


class DummyReduceScatter:
    """`BucketizedReduceScatter` that exchanges nothing: this rank's part of its own input."""

    def __init__(self, shard_count: int) -> None:
        if shard_count != world.world_size():
            raise ArgumentError(
                f"DummyReduceScatter: shard_count is {shard_count} in a world of"
                f" {world.world_size()} ranks; give it the number of ranks"
            )
        self.scale = 1.0

    def __call__(self, input: torch.Tensor, callback: Callback) -> None:
        """Give `callback` this rank's part of the input [n, ...]."""
        callback(input.chunk(world.world_size())[world.rank()])

    def flush(self) -> None:
        """Nothing waits."""


def dummy_all_gather(value: torch.Tensor, dim: int = 0, groups: GroupLists = None) -> torch.Tensor:
    """What `all_gather` gives where all ranks hold the same: as large, and nothing is exchanged."""
    return torch.cat([value] * world.world_size(), dim)


def dummy_all_reduce(
    reduce_type: str, inputs: Any, scale: float = 1.0, groups: GroupLists = None
) -> Any:
    """`all_reduce` that exchanges nothing: the inputs times `scale`; a list is written in place."""
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    return [tensor.mul_(scale) for tensor in inputs]

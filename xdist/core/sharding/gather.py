"""The values of an array that lies on several devices, on the host."""

import jax
import numpy as np
from jax.experimental import multihost_utils

from torch_xdist import metrics
from torch_xdist.core.sharding import piece, together


def whole(buffer: jax.Array) -> np.ndarray:
    """A copy of all values of an array, wherever its parts lie.

    Where some are on other hosts, every host must call it. The counter ReplicateShardedData counts
    the calls, as torch_xla's does.
    """
    metrics.count("ReplicateShardedData")
    if buffer.is_fully_replicated:
        return _copy(buffer.addressable_data(0))
    if not buffer.is_fully_addressable:
        with together.alone_or_together(f"read of a sharded tensor of shape {list(buffer.shape)}"):
            return np.array(multihost_utils.process_allgather(buffer, tiled=True))
    result = np.empty(buffer.shape, buffer.dtype)
    for shard in buffer.addressable_shards:
        if shard.replica_id == 0:
            result[shard.index] = _copy(shard.data)
    return result


def _copy(one: jax.Array) -> np.ndarray:
    """A single-device array on the host, without a copy that stays with it."""
    array, is_private = piece.read(one)
    return array if is_private else array.copy()

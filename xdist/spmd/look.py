"""What became of the marks: the bytes on each device, and the collectives XLA inserted."""

import re
from collections import Counter

import jax

from torch_xdist.core.programs.program import PROGRAMS
from torch_xdist.core.trace.values import hardware_name
from torch_xdist.errors import ShardingError

_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def bytes_per_device() -> dict[str, int]:
    """The bytes of all tensors that lie on each device of this process, by its name."""
    found: Counter[str] = Counter()
    for array in jax.live_arrays():
        if not array.is_deleted():
            for shard in array.addressable_shards:
                found[hardware_name(shard.device)] += shard.data.nbytes
    return dict(sorted(found.items()))


def collectives() -> dict[str, int]:
    """How many collectives of each kind are in the program that ran last: {"all-reduce": 2}.

    Raises ShardingError where none ran yet.
    """
    last = max(PROGRAMS.values(), key=lambda program: program.used, default=None)
    if last is None:
        raise ShardingError("collectives: no program ran yet; call torch_xla.sync() first")
    return dict(Counter(_COLLECTIVE.findall(last.executable.text())))

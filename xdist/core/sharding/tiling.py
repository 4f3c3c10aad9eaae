"""Which part of an array each device holds, in the terms of XLA's sharding annotations."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Tiling:
    """An array cut into equal tiles, each held by one device or by several.

    Attributes:
        tiles: into how many parts each dim is cut.
        devices: their numbers, in row-major order of (*tiles, copies).
    """

    tiles: tuple[int, ...]
    devices: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return math.prod(self.tiles)

    @property
    def copies(self) -> int:
        """How many devices hold each tile."""
        return len(self.devices) // self.count

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self.count == 1

    @property
    def text(self) -> str:
        """As XLA's HLO spells it: "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"."""
        if not self.devices:
            return "{manual}"
        if self.is_replicated:
            return "{replicated}"
        partial = self.copies > 1
        tiles = ",".join(map(str, [*self.tiles, self.copies] if partial else self.tiles))
        devices = ",".join(map(str, self.devices))
        return f"{{devices=[{tiles}]{devices}{' last_tile_dim_replicate' * partial}}}"

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of each device's part of an array; where it is uneven, with the padding."""
        return tuple(-(-size // tiles) for size, tiles in zip(shape, self.tiles))

    def padded_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of an array with padding at the end of the dims that are cut unevenly."""
        return tuple(-(-size // tiles) * tiles for size, tiles in zip(shape, self.tiles))

    def parts(self, shape: Sequence[int]) -> Iterator[tuple[int, int, Slices]]:
        """(device, which of the copies, its part) of an array of `shape`, without the padding."""
        lengths = self.shard_shape(shape)
        devices = iter(self.devices)
        for place in itertools.product(*map(range, self.tiles)):
            part = tuple(
                slice(min(i * length, size), min((i + 1) * length, size))
                for i, length, size in zip(place, lengths, shape)
            )
            for copy in range(self.copies):
                yield next(devices), copy, part


def replicated(rank: int, devices: Sequence[int]) -> Tiling:
    """Every device holds the whole array of so many dims."""
    return Tiling((1,) * rank, tuple(devices))


# Of a tensor that stands for what each device holds: no tiling, and no device is named.
MANUAL = Tiling((), ())

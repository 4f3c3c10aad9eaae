"""The devices behind the logical device, and JAX's shardings over them.

JAX wants the devices of one program in one order, and one mesh for what it tells of results. So all
shardings here are over one mesh of the finest axes: one axis for each prime factor of the number of
devices. Whatever mesh the user names, each dim of a tensor is cut along some of these axes.
"""

import math
import threading
import time
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_xdist import metrics, settings
from torch_xdist.core.sharding import together
from torch_xdist.core.sharding.arrays import HostArray, Parts
from torch_xdist.core.sharding.tiling import Tiling, replicated
from torch_xdist.errors import ShardingError

_SAMPLED = 1000
Buffer = jax.Array | HostArray | Parts


class Layout:
    """All devices of the job, in the order of programs.

    Attributes:
        devices: by their numbers in meshes.
        replicated: the sharding of an array that every device holds.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self.devices = list(devices)
        self._lock = threading.Lock()
        # Single-device arrays from before, by id, and where they are now.
        self._moved: dict[int, tuple[weakref.ref[jax.Array], jax.Array]] = {}
        # Of arrays that came from the host, where other processes must have put the same: samples
        # of their values, by id.
        self._samples: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._is_fixed = False
        self._set(tuple(range(len(self.devices))), (len(self.devices),))

    def _set(self, order: tuple[int, ...], shape: Sequence[int]) -> None:
        """Lay the finest mesh over the devices in this order; `shape` is of a mesh it refines."""
        self._place = {number: place for place, number in enumerate(order)}
        self.order = order
        self._sizes = [p for size in shape for p in _prime_factors(size)] or [1]
        self._strides = [math.prod(self._sizes[i + 1 :]) for i in range(len(self._sizes))]
        names = tuple(map(str, range(len(self._sizes))))
        grid = np.array([self.devices[number] for number in order], object).reshape(self._sizes)
        self._mesh = Mesh(grid, names)
        self.replicated = NamedSharding(self._mesh, PartitionSpec())
        self._shardings: dict[Tiling, NamedSharding] = {}
        self._tilings: dict[tuple[Any, int], Tiling] = {}

    def over(self, devices: Sequence[jax.Device]) -> "Layout":
        """The same arrangement of as many other devices."""
        other = Layout(devices)
        other._set(self.order, self._sizes)
        return other

    @property
    def mesh(self) -> Mesh:
        """The mesh of the finest axes."""
        return self._mesh

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of its axes, major first."""
        return self._mesh.axis_names  # type: ignore[no-any-return]

    @property
    def count(self) -> int:
        """How many devices there are."""
        return len(self.devices)

    def axes_of_groups(self, groups: Sequence[Sequence[int]]) -> tuple[str, ...]:
        """The axes along which the devices of each group lie, in the groups' order.

        Raises ShardingError where they lie along none.
        """
        grid = np.array([[self._place[number] for number in group] for group in groups])
        line = (grid[0] - grid[0, 0]).tolist()
        axes = self._axes_of_line(line)
        if axes is None or not np.array_equal(grid, grid[:, :1] + np.array(line)):
            raise ShardingError(
                f"groups {[list(group) for group in groups]} do not lie along axes of the mesh, in"
                f" which the devices are {list(self.order)}; use its rows or columns"
            )
        return tuple(map(str, axes))

    def follow(self, mesh: np.ndarray) -> None:
        """Take the order of the devices, by number, from a mesh: the first one does it."""
        if not self._is_fixed:
            self._is_fixed = True
            self._set(tuple(int(number) for number in mesh.flat), mesh.shape)

    @property
    def numbers(self) -> range:
        """The numbers of the devices."""
        return range(len(self.devices))

    def sharding(self, tiling: Tiling) -> NamedSharding:
        """JAX's sharding for an array that is cut so, its padding included.

        Where the finest mesh has no such axes (the order of the devices is another than the first
        mesh's, or the factors are), the tiles go to the devices in the order of programs; if not
        even that is possible the array is replicated. The counter SpmdOtherOrder counts both.
        """
        found = self._shardings.get(tiling)
        if found is None:
            axes = self._axes(tiling)
            if axes is None:
                metrics.count("SpmdOtherOrder")
                axes = self._axes(Tiling(tiling.tiles, self.order)) or [()] * len(tiling.tiles)
            spec = PartitionSpec(*[tuple(map(str, names)) or None for names in axes])
            found = self._shardings[tiling] = NamedSharding(self._mesh, spec)
        return found

    def is_along_axes(self, tiling: Tiling) -> bool:
        """Whether each tile lies on the very devices that the tiling names."""
        return self._axes(tiling) is not None

    def _axes(self, tiling: Tiling) -> list[tuple[int, ...]] | None:
        """The axes of the finest mesh along which each dim is cut, major first; None: no such."""
        places = np.array([self._place[number] for number in tiling.devices])
        # Which copy is which does not matter.
        grid = np.sort(places.reshape(*tiling.tiles, tiling.copies), axis=-1)
        found: list[tuple[int, ...]] = []
        expected = grid[(0,) * len(tiling.tiles)]
        for dim in reversed(range(len(tiling.tiles))):
            line = np.moveaxis(grid, dim, 0).reshape(tiling.tiles[dim], -1)[:, 0] - grid.flat[0]
            axes = self._axes_of_line(line.tolist())
            if axes is None:
                return None
            found.insert(0, axes)
            expected = line.reshape(-1, *[1] * expected.ndim) + expected
        return found if np.array_equal(grid, expected) else None

    def _axes_of_line(self, places: list[int]) -> tuple[int, ...] | None:
        """The axes along which places in the order of programs follow one another."""
        axes: list[int] = []
        known = 1
        while known < len(places):
            step = places[known]
            axis = self._strides.index(step) if step in self._strides else -1
            # Axes of one device have the stride of the next.
            while axis >= 0 and self._sizes[axis] == 1:
                axis = axis + 1 if axis + 1 < len(self._sizes) else -1
            if axis < 0 or axis in axes:
                return None
            axes.insert(0, axis)
            grown = known * self._sizes[axis]
            wanted = [places[i % known] + i // known * step for i in range(grown)]
            if places[:grown] != wanted:
                return None
            known = grown
        return tuple(axes)

    def tiling(self, sharding: Any, rank: int) -> Tiling:
        """How an array of so many dims is cut that lies in a sharding over the mesh."""
        key = sharding, rank
        found = self._tilings.get(key)
        if found is None:
            found = self._tilings[key] = self._read(sharding, rank)
        return found

    def _read(self, sharding: Any, rank: int) -> Tiling:
        spec = [*sharding.spec] + [None] * (rank - len(sharding.spec))
        cut = [_names(entry) for entry in spec]
        used = [axis for axes in cut for axis in axes]
        rest = [axis for axis in range(len(self._sizes)) if axis not in used]
        grid = np.array(self.order).reshape(self._sizes).transpose(used + rest)
        tiles = tuple(math.prod(self._sizes[axis] for axis in axes) for axes in cut)
        return Tiling(tiles, tuple(grid.ravel().tolist()))

    def is_here(self, buffer: Buffer) -> bool:
        """Whether a buffer lies on all devices already."""
        sharding = getattr(buffer, "sharding", None)
        return isinstance(sharding, NamedSharding) and sharding.mesh == self._mesh

    def placed(self, buffer: Buffer) -> jax.Array:
        """The buffer on all devices; replicated where it was not there."""
        if self.is_here(buffer):
            return buffer  # type: ignore[return-value]
        if isinstance(buffer, Parts):
            return buffer.array
        if isinstance(buffer, HostArray):
            if buffer.placed is None:
                buffer.placed = self.put(buffer.array, self._unsaid(buffer.array.shape))
            return buffer.placed
        with self._lock:
            known = self._moved.get(id(buffer))
            if known is not None and known[0]() is buffer:
                return known[1]
            moved = self.put(np.asarray(buffer), replicated(buffer.ndim, self.order))
            key = id(buffer)
            self._moved[key] = weakref.ref(buffer, lambda _: self._moved.pop(key, None)), moved
        return moved

    def _unsaid(self, shape: Sequence[int]) -> Tiling:
        """How an array of the host is laid that nobody marked: whole, or cut by `auto`."""
        mesh = settings.auto_spmd()
        if mesh is None:
            return replicated(len(shape), self.order)
        sizes = [size or self.count for size in mesh]
        if self.count % math.prod(sizes):
            raise ShardingError(
                f"XLA_AUTO_SPMD_MESH={','.join(map(str, sizes))} has {math.prod(sizes)} devices,"
                f" and there are {self.count}; use sizes that make {self.count}"
            )
        tiles = [1] * len(shape)
        for size in sizes:
            free = (d for d in range(len(shape)) if tiles[d] == 1 and not shape[d] % size)
            dim = next(free, None)
            if dim is not None:
                tiles[dim] = size
        return Tiling(tuple(tiles), self.order)

    def put(self, array: np.ndarray, tiling: Tiling) -> jax.Array:
        """An array of the host on the devices, cut so, with padding where that is uneven."""
        started = time.perf_counter()
        placed = self._put(array, tiling)
        metrics.observe("TransferToDeviceTime", time.perf_counter() - started)
        metrics.observe("OutboundData", array.nbytes)
        return placed

    def _put(self, array: np.ndarray, tiling: Tiling) -> jax.Array:
        shape = tiling.padded_shape(array.shape)
        if shape != array.shape:
            pads = [(0, size - have) for size, have in zip(shape, array.shape)]
            array = np.pad(array, pads)
        sharding = self.sharding(tiling)
        if jax.process_count() == 1:
            return jax.device_put(array, sharding)
        placed = jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
        key = id(placed)
        known = weakref.ref(placed, lambda _: self._samples.pop(key, None))
        self._samples[key] = known, _sample(array)
        return placed

    def sample_of(self, arrays: Sequence[jax.Array]) -> int:
        """A number that differs between processes which put other values here from the host."""
        samples = self._samples
        # In whatever order: which of them are donated may differ.
        return sum(samples[id(array)][1] for array in arrays if id(array) in samples)

    def resharded(self, buffer: Buffer, shape: Sequence[int], tiling: Tiling) -> jax.Array:
        """A buffer with the values of an array of `shape`, cut in another way."""
        if isinstance(buffer, Parts):
            np.asarray(buffer)  # Raises.
        if isinstance(buffer, HostArray) and buffer.placed is None:
            return self.put(buffer.array, tiling)
        placed = self.placed(buffer)
        with together.alone_or_together(f"tensor of shape {list(shape)} sharded as {tiling.text}"):
            array = padded(unpadded(placed, shape), tiling.padded_shape(shape))
            return jax.device_put(array, self.sharding(tiling))

    def of_all_processes(self, array: np.ndarray, tiling: Tiling) -> jax.Array:
        """The array whose rows are those that all processes have, cut so; this one has `array`.

        Raises ShardingError where the devices of this process need rows that it has not.
        """
        count = len({device.process_index for device in self.devices})
        shape = (array.shape[0] * count, *array.shape[1:])
        sharding = self.sharding(tiling)
        mine: Any = sharding.addressable_devices_indices_map(shape).values()
        rows = [index[0].indices(shape[0])[:2] for index in mine]
        first, last = min(start for start, _ in rows), max(stop for _, stop in rows)
        if last - first > array.shape[0] or tiling.padded_shape(shape) != shape:
            raise ShardingError(
                f"minibatch: a batch of shape {list(shape)}, of which each of {count} processes"
                f" has {array.shape[0]} rows, sharded as {tiling.text}: the devices of this"
                f" process need rows {first} to {last}; cut the first dim by the axis of the mesh"
                " that goes over the processes, into equal parts"
            )

        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(shape[0])
            return array[(slice(start - first, stop - first), *index[1:])]

        return jax.make_array_from_callback(shape, sharding, part)


def _sample(array: np.ndarray) -> int:
    """A checksum of values all over an array."""
    flat = array.reshape(-1)
    return zlib.crc32(flat[:: flat.size // _SAMPLED + 1].tobytes())


def unpadded(array: Any, shape: Sequence[int]) -> Any:
    """An array without the padding at the end of its dims."""
    if tuple(array.shape) == tuple(shape):
        return array
    return array[tuple(slice(size) for size in shape)]


def padded(array: jax.Array, shape: Sequence[int]) -> jax.Array:
    """An array with zeros at the end of its dims."""
    if tuple(array.shape) == tuple(shape):
        return array
    return jax.numpy.pad(array, [(0, size - have) for size, have in zip(shape, array.shape)])


def _names(entry: Any) -> list[int]:
    """The axes of one entry of a partition spec."""
    if entry is None:
        return []
    return [int(name) for name in (entry if isinstance(entry, tuple) else (entry,))]


def _prime_factors(number: int) -> list[int]:
    found = []
    factor = 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found

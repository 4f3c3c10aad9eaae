"""Meshes of devices, and which of their axes cut which dim of a tensor."""

import ast
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from torch_xdist import metrics
from torch_xdist.core.devices import aim, ordinals
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.errors import ShardingError
from torch_xdist.spmd.op_sharding import OpSharding

# For each dim of a tensor the axes that cut it, by index or name, major first; None: none does.
PartitionSpec = tuple[tuple[int | str, ...] | int | str | None, ...]


class Mesh:
    """All devices of the job in a grid with an axis for each way to be parallel.

    Args:
        device_ids: every device once, in row-major order of the grid.
        mesh_shape: how many devices lie along each axis.
        axis_names: of the axes, all different.

    Raises ShardingError where they do not fit one another or the devices there are. Source:
    `torch_xla.distributed.spmd.Mesh`.
    """

    def __init__(
        self,
        device_ids: np.ndarray | list[int],
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        self.device_ids = np.asarray(device_ids)
        self.mesh_shape = tuple(mesh_shape)
        self.axis_names = axis_names
        self._check_names()
        self._check_devices()
        self._tilings: dict[PartitionSpec, Tiling] = {}

    def _check_names(self) -> None:
        names = self.axis_names
        if names is None:
            return
        if len(names) != len(self.mesh_shape):
            raise ShardingError(
                f"Number of axis names ({len(names)}) must match mesh dimensions"
                f" ({len(self.mesh_shape)}): names {names}, shape {self.mesh_shape}"
            )
        if len(set(names)) != len(names):
            raise ShardingError(f"Axis names must be unique, got: {names}")

    def _check_devices(self) -> None:
        ids, size = self.device_ids, self.size()
        there = ordinals.global_runtime_device_count()
        if len(ids) != there:
            raise ShardingError(
                f"Number of device IDs ({len(ids)}) must match the global number of devices"
                f" ({there}); on the CPU, CPU_NUM_DEVICES says how many there are"
            )
        if len(ids) != size:
            raise ShardingError(
                f"Number of device IDs ({len(ids)}) must match mesh size ({size}) of shape"
                f" {self.mesh_shape}"
            )
        if len(set(ids.tolist())) != len(ids):
            raise ShardingError(f"Device IDs must be unique, got: {ids}")
        if not all(0 <= number < size for number in ids.tolist()):
            raise ShardingError(f"Device IDs must be less than mesh size ({size}), got: {ids}")

    def size(self) -> int:
        """How many devices it has."""
        return math.prod(self.mesh_shape)

    def shape(self) -> "OrderedDict[Any, int]":
        """The length of each axis, by its name or else its index."""
        names = self.axis_names or range(len(self.mesh_shape))
        return OrderedDict(zip(names, self.mesh_shape))

    def get_logical_mesh(self) -> np.ndarray:
        """The devices' numbers in the shape of the mesh."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """Which axis has this name; None for none."""
        names = self.axis_names or ()
        return names.index(name) if name in names else None

    def get_jax_mesh(self) -> jax.sharding.Mesh:
        """The same mesh as JAX's, whose axes are named by index where these have no names."""
        names = self.axis_names or tuple(map(str, range(len(self.mesh_shape))))
        devices = sorted(aim.devices(), key=lambda device: device.id)
        grid = np.array([devices[number] for number in self.device_ids], object)
        return jax.sharding.Mesh(grid.reshape(self.mesh_shape), names)

    def tiling(self, partition_spec: PartitionSpec) -> Tiling:
        """Which part of a tensor each device holds. Raises ShardingError for a bad spec."""
        found = self._tilings.get(partition_spec)
        if found is None:
            metrics.count("CreateOpSharding")
            found = self._tilings[partition_spec] = self._tiling(partition_spec)
        return found

    def _tiling(self, spec: PartitionSpec) -> Tiling:
        cut = [self.axes(entry, spec) for entry in spec]
        used = [axis for axes in cut for axis in axes]
        if len(set(used)) != len(used):
            raise ShardingError(
                f"Each device mesh dimension should appear at most once in partition_spec {spec}"
            )
        rest = [axis for axis in range(len(self.mesh_shape)) if axis not in used]
        devices = self.get_logical_mesh().transpose(used + rest)
        tiles = tuple(math.prod(self.mesh_shape[axis] for axis in axes) for axes in cut)
        return Tiling(tiles, tuple(devices.ravel().tolist()))

    def axes(self, entry: Any, spec: PartitionSpec) -> list[int]:
        """The axes that one entry of a partition spec means."""
        return [*self._axes(entry, spec)]

    def _axes(self, entry: Any, spec: PartitionSpec) -> Iterator[int]:
        for axis in entry if isinstance(entry, tuple) else (entry,):
            if isinstance(axis, tuple):
                raise ShardingError(f"Partition spec cannot contain nested tuples: {spec}")
            if isinstance(axis, str):
                index = self.get_axis_name_idx(axis)
                if index is None:
                    raise ShardingError(
                        f"Axis name {axis} is not defined in the given mesh, which has"
                        f" {self.axis_names}"
                    )
                yield index
            elif isinstance(axis, int | np.integer):
                if not 0 <= axis < len(self.mesh_shape):
                    raise ShardingError(
                        f"partition_spec ({spec}) contains out of bound index {axis} into"
                        f" mesh_shape {self.mesh_shape}"
                    )
                yield int(axis)
            elif axis is not None:
                raise ShardingError(f"Spec type {type(axis)} is not supported in partition spec")

    def get_op_sharding(self, partition_spec: PartitionSpec) -> OpSharding:
        """The tiling as torch_xla's object."""
        return OpSharding.of(self.tiling(partition_spec))

    def __str__(self) -> str:
        return (
            f"{{'device_ids': {self.device_ids.tolist()}, 'mesh_shape': {self.mesh_shape},"
            f" 'axis_names': {self.axis_names}}}"
        )

    @classmethod
    def from_str(cls, mesh_str: str) -> "Mesh | None":
        """The mesh that `str` describes; None where the text is of none."""
        try:
            found = ast.literal_eval(mesh_str.replace("Mesh", ""))
            arguments = found["device_ids"], found["mesh_shape"], found["axis_names"]
        except (ValueError, SyntaxError, KeyError, TypeError):
            return None
        return cls(*arguments)


_global_mesh: Mesh | None = None


def set_global_mesh(mesh: Mesh) -> None:
    """Make it the mesh that is meant where none is named."""
    global _global_mesh
    _global_mesh = mesh


def get_global_mesh() -> Mesh | None:
    """The mesh that is meant where none is named; None where none was set."""
    return _global_mesh


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """All devices along one axis."""
    count = ordinals.global_runtime_device_count()
    return Mesh(np.arange(count), (count,), None if axis_name is None else (axis_name,))


def mesh_or_global(mesh: Mesh | None, of: str) -> Mesh:
    """The mesh that a call means. Raises ShardingError where there is none."""
    found = mesh if mesh is not None else _global_mesh
    if found is None:
        raise ShardingError(f"{of}: no mesh: pass mesh=, or call xs.set_global_mesh first")
    return found


def checked_spec(of: str, shape: Sequence[int], spec: PartitionSpec) -> PartitionSpec:
    """The spec as a tuple. Raises ShardingError where it has not one entry for each dim."""
    if len(shape) != len(spec):
        raise ShardingError(
            f"{of}: Partition spec length ({len(spec)}) should be equal to the input rank"
            f" ({len(shape)}): spec {tuple(spec)}, shape {tuple(shape)}"
        )
    return tuple(tuple(e) if isinstance(e, list) else e for e in spec)

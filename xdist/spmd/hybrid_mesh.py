"""Meshes of several TPU slices: fast links inside a slice, the data centre's network between."""

from collections import defaultdict
from math import prod
from typing import Any

import numpy as np

from torch_xdist.errors import ShardingError
from torch_xdist.spmd.mesh import Mesh
from torch_xdist.torch_xla_compat.runtime_facts import global_runtime_device_attributes

try:
    # The public function wants JAX's devices, not their places.
    from jax._src.mesh_utils import _create_device_mesh_for_nd_torus
except ImportError:
    _create_device_mesh_for_nd_torus = None  # type: ignore[assignment]


class HybridMesh(Mesh):
    """A mesh whose axes follow the links between the devices.

    Args:
        ici_mesh_shape: the shape of the mesh inside each slice; the axis that exchanges most last.
        dcn_mesh_shape: the shape of the mesh of slices, of as many axes.

    Raises ShardingError where the shapes do not fit the slices there are. Source:
    `torch_xla.distributed.spmd.HybridMesh`.
    """

    def __init__(
        self,
        *,
        ici_mesh_shape: tuple[int, ...],
        dcn_mesh_shape: tuple[int, ...] | None = None,
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        dcn = (1,) * len(ici_mesh_shape) if dcn_mesh_shape is None else dcn_mesh_shape
        if len(dcn) != len(ici_mesh_shape):
            raise ShardingError(
                f"HybridMesh: dcn_mesh_shape {dcn} and ici_mesh_shape {ici_mesh_shape} must have as"
                " many axes"
            )
        self.ici_mesh_shape = ici_mesh_shape
        self.dcn_mesh_shape = dcn
        self.device_attributes = sorted(global_runtime_device_attributes(), key=_number)
        has_slices = "slice_index" in self.device_attributes[0]
        if has_slices and prod(dcn) == 1:
            raise ShardingError("Provide dcn_mesh_shape to create a mesh for multislice")
        if not has_slices and prod(dcn) > 1:
            raise ShardingError(
                f"Invalid dcn_mesh_shape for single slice mesh: {dcn}; the devices name no slice"
            )
        shape = tuple(inner * outer for inner, outer in zip(ici_mesh_shape, dcn))
        grid = self._of_slices() if prod(dcn) > 1 else self._of_slice(self._all())
        super().__init__(grid.ravel(), shape, axis_names)

    def _all(self) -> list[int]:
        return list(range(len(self.device_attributes)))

    def _of_slices(self) -> np.ndarray:
        """The mesh of every slice, side by side as the slices lie."""
        members: dict[Any, list[int]] = defaultdict(list)
        for place, attributes in enumerate(self.device_attributes):
            members[attributes["slice_index"]].append(place)
        slices = [members[key] for key in sorted(members)]
        if prod(self.dcn_mesh_shape) != len(slices):
            raise ShardingError(
                f"Number of slices {len(slices)} must equal the product of dcn_mesh_shape"
                f" {self.dcn_mesh_shape}"
            )
        meshes = [self._of_slice(devices) for devices in slices]
        places = np.arange(len(slices)).reshape(self.dcn_mesh_shape)
        blocks = np.empty(self.dcn_mesh_shape, object)
        for index in np.ndindex(*self.dcn_mesh_shape):
            blocks[index] = meshes[places[index]]
        return np.block(blocks.tolist())

    def _of_slice(self, devices: list[int]) -> np.ndarray:
        """The devices of one slice in the shape of `ici_mesh_shape`, along its links."""
        shape = self.ici_mesh_shape
        if prod(shape) != len(devices):
            raise ShardingError(
                f"Number of devices {len(devices)} must equal the product of mesh_shape {shape}"
            )
        coords: list[Any] = [self.device_attributes[device].get("coords") for device in devices]
        if None in coords or _create_device_mesh_for_nd_torus is None:
            return np.array(devices).reshape(shape)
        torus = np.empty(tuple(np.max(coords, axis=0) + 1), np.int64)
        for place, device in zip(coords, devices):
            torus[tuple(place)] = device
        found, _ = _create_device_mesh_for_nd_torus(torus, shape, allow_split_physical_axes=True)
        return found


def _number(attributes: dict[str, Any]) -> int:
    return int(attributes["name"].partition(":")[2])

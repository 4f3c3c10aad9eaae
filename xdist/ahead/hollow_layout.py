"""The devices behind the logical device where they are described alone: all is hollow there."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

try:
    from jax._src.lib import xla_client
    from jax._src.sharding_impls import parse_flatten_op_sharding
except ImportError:
    parse_flatten_op_sharding = None  # type: ignore[assignment]

from torch_xdist.ahead.hollow import Hollow
from torch_xdist.core.sharding.arrays import Parts
from torch_xdist.core.sharding.layout import Buffer, Layout
from torch_xdist.core.sharding.tiling import Tiling, replicated
from torch_xdist.errors import ReleaseError


class HollowLayout(Layout):
    """As `Layout`, but nothing is put anywhere."""

    def placed(self, buffer: Buffer) -> Any:
        """The buffer on all devices; replicated where it was on one."""
        if isinstance(buffer, Hollow) and not self.is_here(buffer):
            return Hollow(buffer.shape, buffer.dtype, self.replicated)
        return super().placed(buffer)

    def _put(self, array: np.ndarray, tiling: Tiling) -> Any:
        shape = tiling.padded_shape(array.shape)
        if shape != array.shape:
            return Hollow(shape, array.dtype, self.sharding(tiling))
        return Hollow.of(array, self.sharding(tiling))

    def resharded(self, buffer: Buffer, shape: Sequence[int], tiling: Tiling) -> Any:
        """A buffer in the place of one that is cut in another way."""
        if isinstance(buffer, Parts):
            np.asarray(buffer)  # Raises.
        return Hollow(tiling.padded_shape(tuple(shape)), buffer.dtype, self.sharding(tiling))

    def of_all_processes(self, array: np.ndarray, tiling: Tiling) -> Any:
        """The array whose rows are those that all processes have, cut so."""
        count = len({device.process_index for device in self.devices})
        shape = (array.shape[0] * count, *array.shape[1:])
        return Hollow(tiling.padded_shape(shape), array.dtype, self.sharding(tiling))

    def result(self, shape: Sequence[int], dtype: np.dtype, said: Tiling | None, found: str) -> Any:
        """A result of a program: where the user did not say how it lies, as the compiler has it.

        Args:
            found: the compiler's sharding, an OpSharding in hexadecimal digits; "" for unknown.
        """
        if said is not None:
            return Hollow(said.padded_shape(tuple(shape)), dtype, self.sharding(said))
        if not found:
            return Hollow(tuple(shape), dtype, self.sharding(replicated(len(shape), self.order)))
        return Hollow(tuple(shape), dtype, _sharding_of(bytes.fromhex(found), self.mesh))


def _sharding_of(proto: bytes, mesh: jax.sharding.Mesh) -> NamedSharding:
    if parse_flatten_op_sharding is None:
        raise ReleaseError(
            f"jax {jax.__version__} has no parse_flatten_op_sharding, with which what a compiler"
            " says of results is read; use one of the releases in docs/versions.md"
        )
    told = xla_client.OpSharding()
    told.ParseFromString(proto)
    [spec, *_] = parse_flatten_op_sharding(xla_client.HloSharding.from_proto(told), mesh)
    return NamedSharding(mesh, spec)

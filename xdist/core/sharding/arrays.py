"""What values of the logical device hold beside JAX's arrays."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_xdist.errors import ShardingError


class HostArray:
    """An array that stays on the host until a program needs it; nobody writes to it any more.

    A model is moved to the device before its parameters are sharded. If that put each of them onto
    every device at once, a model that fits only in parts would not fit.

    Attributes:
        placed: on the devices, once a program needed it.
    """

    __slots__ = ("__weakref__", "array", "placed")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.placed: jax.Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def is_deleted(self) -> bool:
        """Whether a program used it up."""
        return self.placed is not None and self.placed.is_deleted()

    def block_until_ready(self) -> "HostArray":
        """Wait for nothing: it is here."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.array, dtype)


class Parts:
    """What each device holds of a tensor that is sharded by hand: there is no whole array.

    Attributes:
        array: the parts, stacked: [devices, *shape], one on each device.
    """

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: jax.Array) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def is_deleted(self) -> bool:
        """Whether a program used it up."""
        return self.array.is_deleted()

    def is_ready(self) -> bool:
        """Whether every device has its part."""
        array: Any = self.array
        return bool(array.is_ready())

    def block_until_ready(self) -> "Parts":
        """Wait until every device has its part."""
        self.array.block_until_ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise by_hand(self.shape, self.array.shape[0])


def by_hand(shape: Sequence[int], count: int) -> ShardingError:
    """The error where a tensor is taken for a whole that is sharded by hand on so many devices."""
    return ShardingError(
        f"a tensor of shape {list(shape)} is sharded by hand: each of {count} devices has its own"
        " values; pass it to xs.disable_manual_sharding, which says what they make together"
    )

"""`torch.ops.xla.dynamic_view` and `dynamic_expand`: sizes that come from another tensor.

While a program is exported, that tensor's size may be open, and so is the result's then.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_xdist.ops.table import lowers

_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "dynamic_expand(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim)"
    " -> Tensor"
)
_library.define(
    "dynamic_view(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim,"
    " float mul_scaler) -> Tensor"
)


def _with(sizes: Sequence[Any], dim: int, size: Any) -> list[Any]:
    """Sizes, with another one for a dim."""
    return [size if place == dim else other for place, other in enumerate(sizes)]


@lowers("xla.dynamic_expand.default")
def _expand_row(
    input: jax.Array, size: Sequence[int], src_tensor: jax.Array, src_dim: int, target_dim: int
) -> jax.Array:
    wanted = _with(size, target_dim, src_tensor.shape[src_dim])
    new = len(wanted) - input.ndim
    shape = [input.shape[i - new] if n == -1 else n for i, n in enumerate(wanted)]
    return jnp.broadcast_to(input, shape)


@lowers("xla.dynamic_view.default")
def _view_row(
    input: jax.Array,
    size: Sequence[int],
    src_tensor: jax.Array,
    src_dim: int,
    target_dim: int,
    mul_scaler: float,
) -> jax.Array:
    shape = _with(size, target_dim, src_tensor.shape[src_dim] * int(mul_scaler))
    return jnp.reshape(input, shape)


def dynamic_expand_xla(
    input: torch.Tensor, size: list[Any], src_tensor: torch.Tensor, src_dim: int, target_dim: int
) -> torch.Tensor:
    """`input.expand(size)`, where dim `target_dim` is as long as `src_tensor`'s `src_dim`."""
    return torch.ops.xla.dynamic_expand(input, size, src_tensor, src_dim, target_dim)  # type: ignore[no-any-return]


@torch.library.impl(_library, "dynamic_expand", "CompositeExplicitAutograd")
def dynamic_expand(
    input: torch.Tensor, size: list[Any], src_tensor: torch.Tensor, src_dim: int, target_dim: int
) -> torch.Tensor:
    """Elsewhere than on the device."""
    return input.expand(_with(size, target_dim, src_tensor.shape[src_dim]))


@torch.library.impl(_library, "dynamic_expand", "Meta")
def dynamic_expand_meta(
    input: torch.Tensor, size: list[Any], src_tensor: torch.Tensor, src_dim: int, target_dim: int
) -> torch.Tensor:
    """Its shape."""
    expanded = input.expand(_with(size, target_dim, src_tensor.shape[src_dim]))
    return torch.empty(expanded.shape, dtype=input.dtype, device="meta")


def dynamic_view_xla(
    input: torch.Tensor,
    size: list[Any],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: int,
) -> torch.Tensor:
    """`input.view(size)`, where dim `target_dim` is `mul_scaler` times as long as another dim."""
    return torch.ops.xla.dynamic_view(  # type: ignore[no-any-return]
        input, size, src_tensor, src_dim, target_dim, mul_scaler
    )


@torch.library.impl(_library, "dynamic_view", "CompositeExplicitAutograd")
def dynamic_view(
    input: torch.Tensor,
    size: list[Any],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: int,
) -> torch.Tensor:
    """Elsewhere than on the device."""
    return input.reshape(_with(size, target_dim, src_tensor.shape[src_dim] * int(mul_scaler)))


@torch.library.impl(_library, "dynamic_view", "Meta")
def dynamic_view_meta(
    input: torch.Tensor,
    size: list[Any],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: int,
) -> torch.Tensor:
    """Its shape."""
    wanted = _with(size, target_dim, src_tensor.shape[src_dim] * int(mul_scaler))
    return torch.empty_like(input, memory_format=torch.contiguous_format).reshape(wanted)

"""The private calls of collectives, by torch_xla's order of arguments.

Their tokens, which keep XLA from changing the order of collectives, are not needed here: the order
is that of the trace. A call that takes one takes anything, and gives None in its place.
"""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.ranks import collective_ops

Groups = Sequence[Sequence[int]]


def _xla_all_reduce(
    reduce_type: str,
    input: torch.Tensor,
    scale: float = 1.0,
    groups: Groups = (),
    pin_layout: bool = True,
) -> torch.Tensor:
    """`xm.all_reduce` of a tensor."""
    return collective_ops.all_reduce(  # type: ignore[no-any-return]
        reduce_type, input, scale, groups or None, pin_layout
    )


def _xla_all_reduce_inplace(
    reduce_type: str,
    inputs: Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: Groups = (),
    pin_layout: bool = True,
) -> None:
    """`xm.all_reduce` of a list, in place."""
    collective_ops.all_reduce(reduce_type, list(inputs), scale, groups or None, pin_layout)


def _xla_all_gather(
    input: torch.Tensor,
    dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor:
    """`xm.all_gather` of a tensor."""
    return collective_ops.all_gather(input, dim, groups or None)  # type: ignore[no-any-return]


def _xla_all_to_all(
    input: torch.Tensor,
    token: Any,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> tuple[torch.Tensor, None]:
    """`xm.all_to_all`, and no token."""
    result = collective_ops.all_to_all(
        input, split_dimension, concat_dimension, split_count, groups or None
    )
    return result, None


def _xla_reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> tuple[torch.Tensor, None]:
    """`xm.reduce_scatter` of a tensor, and no token."""
    result = collective_ops.reduce_scatter(
        reduce_type, input, scale, scatter_dim, shard_count, groups or None
    )
    return result, None


def _get_all_reduce_token(device: str) -> None:
    """No token: see the module."""


def _set_all_reduce_token(device: str, token: Any) -> None:
    """Nothing: see the module."""

"""The private calls of collectives, by torch_xla's order of arguments.

Their tokens keep XLA from changing the order of collectives there. Here the order is that of the
trace, so a token holds nothing: a call that takes one takes anything, and gives a new one.
"""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices import device_names
from torch_xdist.errors import DeviceError
from torch_xdist.ranks import collective_ops, point_to_point, replicas

Groups = Sequence[Sequence[int]]


class IrValue:
    """A token: a place in the order of collectives. Only passed on; there is nothing to read."""

    __slots__ = ()


_tokens: dict[str, IrValue] = {}


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


def _xla_all_gather_out(
    output: torch.Tensor,
    input: torch.Tensor,
    token: Any,
    dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> IrValue:
    """`xm.all_gather` of a tensor into `output`; a token."""
    collective_ops.all_gather(input, dim, groups or None, output)
    return IrValue()


def _xla_all_gather_coalesced(
    tensors: Sequence[torch.Tensor],
    token: Any,
    dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = False,
) -> list[Any]:
    """`xm.all_gather` of a list, as one row; a token is its last entry."""
    results = collective_ops.all_gather(list(tensors), dim, groups or None, pin_layout=False)
    return [*results, IrValue()]


def _xla_all_gather_coalesced_out(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    token: Any,
    dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = False,
) -> IrValue:
    """`xm.all_gather` of a list into `outputs`, as one row; a token."""
    collective_ops.all_gather(list(inputs), dim, groups or None, list(outputs), pin_layout=False)
    return IrValue()


def _xla_all_to_all(
    input: torch.Tensor,
    token: Any,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> tuple[torch.Tensor, IrValue]:
    """`xm.all_to_all`, and a token."""
    result = collective_ops.all_to_all(
        input, split_dimension, concat_dimension, split_count, groups or None
    )
    return result, IrValue()


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
) -> tuple[torch.Tensor, IrValue]:
    """`xm.reduce_scatter` of a tensor, and a token."""
    result = collective_ops.reduce_scatter(
        reduce_type, input, scale, scatter_dim, shard_count, groups or None
    )
    return result, IrValue()


def _xla_reduce_scatter_out(
    reduce_type: str,
    output: torch.Tensor,
    input: torch.Tensor,
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> IrValue:
    """`xm.reduce_scatter` of a tensor into `output`; a token."""
    collective_ops.reduce_scatter(
        reduce_type, input, scale, scatter_dim, shard_count, groups or None, output
    )
    return IrValue()


def _xla_reduce_scatter_coalesced(
    reduce_type: str,
    inputs: Sequence[torch.Tensor],
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> list[Any]:
    """`xm.reduce_scatter` of a list, as one row; a token is its last entry."""
    results = collective_ops.reduce_scatter(
        reduce_type, list(inputs), scale, scatter_dim, shard_count, groups or None
    )
    return [*results, IrValue()]


def _xla_reduce_scatter_coalesced_out(
    reduce_type: str,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = (),
    pin_layout: bool = True,
) -> IrValue:
    """`xm.reduce_scatter` of a list into `outputs`, as one row; a token."""
    collective_ops.reduce_scatter(
        reduce_type, list(inputs), scale, scatter_dim, shard_count, groups or None, list(outputs)
    )
    return IrValue()


def _xla_collective_permute(
    input: torch.Tensor, token: Any, pairs: Groups
) -> tuple[torch.Tensor, IrValue]:
    """`xm.collective_permute` of a tensor, and a token."""
    return collective_ops.collective_permute(input, pairs), IrValue()


def _xla_send(input: torch.Tensor, token: Any, channel_id: int) -> tuple[torch.Tensor, IrValue]:
    """`xm.send`, and a token."""
    return point_to_point.send(input, channel_id).detach(), IrValue()


def _xla_recv(output: torch.Tensor, token: Any, channel_id: int) -> tuple[torch.Tensor, IrValue]:
    """`xm.recv`, and a token."""
    return point_to_point.recv(output, channel_id), IrValue()


def _get_all_reduce_token(device: str) -> IrValue:
    """The token of a device: what was set, or a new one."""
    return _tokens.setdefault(str(device), IrValue())


def _set_all_reduce_token(device: str, token: IrValue | None) -> None:
    """Keep a device's token; None: forget it."""
    _tokens.pop(str(device), None)
    if token is not None:
        _tokens[str(device)] = token


def _xla_set_replication_devices(devices: Sequence[str]) -> None:
    """Make this thread the replica on its device among ["CPU:0", ...]; []: alone again.

    The devices are named as `xm.xla_replication_devices` does; `xm.set_replication` is this and
    the choice of the thread's device.
    """
    here = devices_here.real_devices()
    unknown = [name for name in devices if name not in here]
    if unknown:
        raise DeviceError(
            f"_xla_set_replication_devices: no device {', '.join(unknown)} here; this process has"
            f" {', '.join(here)}"
        )
    replicas.set_replication(devices_here.device(), [f"xla:{here.index(name)}" for name in devices])


def _xla_get_replication_devices() -> list[str]:
    """The devices among which this thread is a replica, as ["CPU:0", ...]; [] for one alone."""
    return device_names.xla_replication_devices() if replicas.is_replica() else []

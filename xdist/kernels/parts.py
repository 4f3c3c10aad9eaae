"""Functions of device tensors over the parts that devices hold, and repeats of a fixed length."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.errors import ArgumentError
from torch_xdist.spmd.manual import disable_manual_sharding, enable_manual_sharding
from torch_xdist.spmd.mesh import Mesh

_Spec = Any


def _shard_map(
    func: Callable[..., Any],
    mesh: Mesh,
    input_specs: Sequence[_Spec],
    output_specs: Sequence[_Spec],
) -> Callable[..., Any]:
    """`func` computed by each device on its own part of the arguments.

    Args:
        input_specs: a partition spec for each argument; None for what is no tensor.
        output_specs: a partition spec for each result.

    The function returns a tensor, or a list of them where `func` returns a tuple.
    """

    def whole(*args: Any) -> Any:
        if len(args) != len(input_specs):
            raise ArgumentError(
                f"_shard_map: {len(args)} arguments for {len(input_specs)} input_specs; give one"
                " for each"
            )
        parts = [_part(arg, spec, mesh) for arg, spec in zip(args, input_specs)]
        found = func(*parts)
        if isinstance(found, tuple):
            return [_together(x, spec, mesh) for x, spec in zip(found, output_specs)]
        return _together(found, output_specs[0], mesh)

    return whole


def _part(value: Any, spec: _Spec, mesh: Mesh) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return enable_manual_sharding(value, spec, mesh=mesh).global_tensor


def _together(value: Any, spec: _Spec, mesh: Mesh) -> Any:
    if not isinstance(value, torch.Tensor) or spec is None:
        return value
    cuts = [mesh.axes(entry, spec) for entry in spec]
    shape = [
        size * torch.Size([mesh.mesh_shape[axis] for axis in axes]).numel()
        for size, axes in zip(value.shape, cuts)
    ]
    return disable_manual_sharding(value, spec, shape, mesh=mesh).global_tensor


def repeat_with_fixed_output_size(
    input: torch.Tensor, repeats: torch.Tensor, total_repeat_length: int
) -> torch.Tensor:
    """Each element as often as `repeats` says, cut off or filled up with the last one.

    Args:
        input: [n]; repeats: [n], how often each is repeated.

    Returns [total_repeat_length].
    """
    if input.dim() != 1 or repeats.dim() != 1:
        raise ArgumentError(
            f"repeat_with_fixed_output_size: input has shape {list(input.shape)} and repeats"
            f" {list(repeats.shape)}; both need one dim"
        )
    places = torch.arange(total_repeat_length, device=input.device)
    ends = torch.cumsum(repeats, dim=0)
    return input[torch.searchsorted(ends, places, right=True).clamp(max=input.numel() - 1)]

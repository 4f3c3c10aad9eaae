"""Shardings said by DTensor's meshes and placements."""

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate

from torch_xdist.core.devices import ordinals
from torch_xdist.errors import ShardingError
from torch_xdist.spmd.annotations import mark_sharding
from torch_xdist.spmd.mesh import Mesh
from torch_xdist.spmd.mode import use_spmd
from torch_xdist.spmd.op_sharding import ShardingType
from torch_xdist.spmd.sharded_tensor import XLAShardedTensor


def with_xla(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in SPMD mode."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        use_spmd()
        return func(*args, **kwargs)

    return wrapper


def auto_policy(mod_name: str, mod: torch.nn.Module, mesh: DeviceMesh) -> None:
    """As `partition_fn`: leave all shardings to XLA."""


@with_xla
def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """A DeviceMesh over all devices as an `xs.Mesh`."""
    there = ordinals.global_runtime_device_count()
    if dt_mesh.size() != there:
        raise ShardingError(
            f"convert_to_xla_mesh: the DeviceMesh has {dt_mesh.size()} devices, and there are"
            f" {there}; SPMD takes them all"
        )
    return Mesh(dt_mesh.mesh.flatten().numpy(), tuple(dt_mesh.mesh.shape), dt_mesh.mesh_dim_names)


@with_xla
def convert_to_xla_partition_spec(
    tensor: torch.Tensor, placements: Sequence[Placement]
) -> tuple[int | tuple[int, ...] | None, ...]:
    """Placements, one for each axis of the mesh, as a partition spec, one for each dim."""
    axes: list[list[int]] = [[] for _ in range(tensor.dim())]
    for axis, placement in enumerate(placements):
        if placement.is_shard():
            axes[placement.dim].append(axis)  # type: ignore[attr-defined]
        elif not placement.is_replicate():
            raise ValueError(f"Unsupported placement type: {type(placement).__name__}")
    # An axis by itself stands bare, as torch_xla has it.
    return tuple(tuple(cut) if len(cut) > 1 else next(iter(cut), None) for cut in axes)


@with_xla
def xla_distribute_tensor(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> XLAShardedTensor:
    """Move a tensor to the devices of a DeviceMesh, sharded by the placements.

    Args:
        placements: one for each axis of the mesh; None: every device holds all of it.
    """
    if device_mesh.device_type != "xla":
        raise ShardingError(
            f"xla_distribute_tensor: the DeviceMesh is of {device_mesh.device_type!r}, not 'xla'"
        )
    chosen = [Replicate()] * device_mesh.ndim if placements is None else placements
    if len(chosen) != device_mesh.ndim:
        raise ShardingError(
            "`placements` must have the same length as `device_mesh.ndim`! Found placements length:"
            f" {len(chosen)}, and device_mesh.ndim: {device_mesh.ndim}."
        )
    if isinstance(tensor, XLAShardedTensor):
        if tensor.sharding_type != ShardingType.REPLICATED:
            raise ShardingError(
                "XLAShardedTensor `tensor` is already annotated with non-replication sharding."
                " Clear the existing sharding annotation first, by calling xs.clear_sharding."
            )
        tensor = tensor.global_tensor
    elif isinstance(tensor, DTensor):
        raise ValueError(
            "Cannot distribute a DTensor with local tensor on xla devices."
            "The input tensor must be global."
        )
    whole = tensor if tensor.is_meta else tensor.to("xla")
    spec = convert_to_xla_partition_spec(whole, chosen)
    return mark_sharding(whole, convert_to_xla_mesh(device_mesh), spec)


@with_xla
def xla_distribute_module(
    module: torch.nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, torch.nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> torch.nn.Module:
    """Let `partition_fn(name, submodule, mesh)` shard the parameters of a module.

    Args:
        partition_fn: None: every device holds all parameters; `auto_policy`: XLA decides.
        input_fn, output_fn: `(module, inputs or outputs, mesh)`, called before and after forward.
    """
    if getattr(partition_fn, "__name__", "") == "auto_policy":
        if any(p.device.type == "xla" for p in module.parameters()):
            raise ShardingError(
                "Currently requires module to be on cpu, before xla_distribute_module."
            )
        use_spmd(auto=True)
        module = module.to("xla")
    elif partition_fn is not None:
        for name, child in module.named_modules():
            partition_fn(name, child, device_mesh)  # type: ignore[arg-type]
    if input_fn is not None:
        before = _of_three("input_fn", "inputs", input_fn)
        module.register_forward_pre_hook(lambda m, inputs: before(m, inputs, device_mesh))
    if output_fn is not None:
        after = _of_three("output_fn", "outputs", output_fn)
        module.register_forward_hook(lambda m, inputs, outputs: after(m, outputs, device_mesh))
    return module


def _of_three(name: str, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The hook with three arguments; one with two is called without the module."""
    count = len(inspect.signature(function).parameters)
    if count == 2:
        warnings.warn(
            f"Deprecating {name} that takes two arguments ({what}, device_mesh), please use"
            f" {name} that takes in (module, {what}, device_mesh) instead!",
            stacklevel=4,
        )
        return lambda module, values, mesh: function(values, mesh)
    if count != 3:
        raise ValueError(f"{name} should take in 3 arguments, but got {count} arguments!")
    return function

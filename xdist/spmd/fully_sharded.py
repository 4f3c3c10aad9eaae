"""FSDPv2: every parameter cut over the devices of the mesh axis "fsdp", by marks alone."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _forward_unimplemented

from torch_xdist.errors import ShardingError
from torch_xdist.ranks.fsdp.wrap import recursive_wrap
from torch_xdist.spmd import marks
from torch_xdist.spmd.annotations import mark_sharding
from torch_xdist.spmd.linear import apply_backward_optimization_barrier
from torch_xdist.spmd.mesh import Mesh, PartitionSpec, get_global_mesh

AXIS = "fsdp"


def prepare_spmd_partition_spec(
    param: torch.Tensor, extra_data_axis: str | None = None, shard_maximal: bool = False
) -> PartitionSpec:
    """The spec that cuts a tensor along "fsdp": its first dim, or its longest one.

    Args:
        extra_data_axis: an axis that cuts the dim as well, outside "fsdp".
    """
    shape = list(param.shape)
    if not shape:
        return ()
    dim = shape.index(max(shape)) if shard_maximal else 0
    spec: list[Any] = [None] * len(shape)
    spec[dim] = (extra_data_axis, AXIS) if extra_data_axis else AXIS
    return tuple(spec)


class SpmdFullyShardedDataParallel(nn.Module):
    """A module whose parameters, gradients and optimizer states are cut over the devices.

    XLA gathers each parameter where it is used, and scatters the sum of its gradients. Source:
    `torch_xla.experimental.spmd_fully_sharded_data_parallel`.

    Args:
        module: moved to the device; parameters that are marked already stay as they are.
        mesh: with an axis "fsdp"; None: the global one.
        shard_output: `(output, mesh)` marks the output; by default it is cut along its first dim;
            of a tuple only the first tensor.
        auto_wrap_policy: which modules inside are wrapped by themselves, as torch's FSDP has it.
        auto_wrapper_callable: wraps them, instead of this class; it is given `mesh` and
            `shard_output`.
        extra_data_axis: a further axis of the mesh along which the batch is cut.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: Mesh | None = None,
        shard_output: Callable[..., Any] | None = None,
        auto_wrap_policy: Callable[..., Any] | None = None,
        auto_wrapper_callable: Callable[..., Any] | None = None,
        extra_data_axis: str | None = None,
    ) -> None:
        _check_module(module)
        found = _checked_mesh(mesh, extra_data_axis)
        super().__init__()
        if auto_wrap_policy is not None:
            for name, child in module.named_modules():
                if isinstance(child, SpmdFullyShardedDataParallel):
                    raise ValueError(
                        f"Expected {name} to NOT be SpmdFullyShardedDataParallel if using an"
                        " `auto_wrap_policy`"
                    )
            alike = functools.partial(SpmdFullyShardedDataParallel, extra_data_axis=extra_data_axis)
            recursive_wrap(
                module=module,
                auto_wrap_policy=auto_wrap_policy,
                wrapper_cls=auto_wrapper_callable or alike,
                ignored_modules=set(),
                ignored_params=set(),
                only_wrap_children=True,
                mesh=found,
                shard_output=shard_output,
            )
        self._orig_module = module.to("xla")
        self._mesh = found
        self._extra_data_axis = extra_data_axis
        self._shard_output = shard_output or self._cut_first
        for parameter in module.parameters():
            if marks.tiling_of(parameter) is None:  # type: ignore[arg-type]
                spec = prepare_spmd_partition_spec(parameter, shard_maximal=True)
                mark_sharding(parameter, found, spec)
        apply_backward_optimization_barrier(module)

    def _cut_first(self, output: Any, mesh: Mesh) -> None:
        """Cut the output along its first dim, so that XLA gathers parameters, not activations."""
        if isinstance(output, tuple):
            warnings.warn(
                "The output is a tuple, but only the first element is sharded. If this is not"
                " intended, please provide your own shard_output callable.",
                stacklevel=2,
            )
        first = output[0] if isinstance(output, Sequence) and output else output
        if not isinstance(first, torch.Tensor):
            raise RuntimeError(
                f"The output type is not supported: {type(output)}. Please provide your own"
                " shard_output callable."
            )
        mark_sharding(first, mesh, prepare_spmd_partition_spec(first, self._extra_data_axis))

    @property
    def module(self) -> nn.Module:
        """The module inside."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.module(*args, **kwargs)
        self._shard_output(output, self._mesh)
        return output

    def __getattr__(self, name: str) -> Any:
        """What this module has not, the module inside may have."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def __getitem__(self, key: int) -> nn.Module:
        """An element of a Sequential inside."""
        return self.module.__getitem__(key)  # type: ignore[no-any-return, operator]


def _check_module(module: nn.Module) -> None:
    if isinstance(module, SpmdFullyShardedDataParallel):
        raise RuntimeError(
            "Cannot wrap a module that is already wrapped with FSDP. For nested FSDP, first wrap"
            " the inner child modules before wrapping the outer parent module."
        )
    if getattr(module.forward, "__func__", None) is _forward_unimplemented:
        raise RuntimeError(
            "The module wrapped by FSDP must define a `forward` method and call it during the"
            f" module's forward pass for FSDP to work correctly, which {type(module).__name__} has"
            " not. Wrap what it holds"
        )


def _checked_mesh(mesh: Mesh | None, extra_data_axis: str | None) -> Mesh:
    found = mesh if mesh is not None else get_global_mesh()
    if found is None:
        raise ShardingError("No mesh is provided and no global mesh is set. Please provide a mesh.")
    names = found.axis_names or ()
    if AXIS not in names:
        raise ShardingError(f"The mesh must have an axis named 'fsdp'; its axes are {names}")
    if extra_data_axis and extra_data_axis not in names:
        raise ShardingError(
            f"The provided {extra_data_axis} axis is not in the mesh, whose axes are {names}"
        )
    return found

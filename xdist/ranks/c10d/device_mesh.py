"""`torch.distributed.device_mesh` on "xla", for `fully_shard`, DTensor and hybrid sharding.

torch leaves a mesh of "xla" without process groups and coordinates: it expects SPMD there. Outside
of SPMD mode it gets both here, over the backend "xla", and `distribute_tensor` does what it does on
other devices.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _resolve_process_group

from torch_xdist import settings
from torch_xdist.core.record import dispatch
from torch_xdist.core.trace.operators import Op
from torch_xdist.releases import patch_table, patches, probes


def register() -> None:
    """Complete every mesh of "xla" that is made from now on; a second call changes nothing."""
    dispatch.install(_OF_FULLY_SHARD)
    patches.wrap("torch.distributed.device_mesh.DeviceMesh.__init__", _completing)


def _completing(usual: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(usual)
    def init(self: Any, device_type: str, *arguments: Any, **options: Any) -> None:
        usual(self, device_type, *arguments, **options)
        if device_type == "xla" and not settings.asks_for_spmd():
            _complete(self, **options)
            probes.require(patch_table.FIRST_MESH)
            from torch_xdist.ranks.c10d import dtensors

            dtensors.register()

    return init


def _complete(
    mesh: Any,
    /,
    backend_override: Any = None,
    _init_backend: bool = True,
    _rank: int | None = None,
    **_: Any,
) -> None:
    """What torch does for the meshes of other devices."""
    if _init_backend:
        if not dist.is_initialized():
            dist.init_process_group("xla", init_method="xla://")
        overrides = backend_override or tuple((None, None) for _ in range(mesh.ndim))
        _make_groups(mesh, overrides)
    mesh._rank = dist.get_rank() if _rank is None else _rank
    if _KEEPS_ITS_GROUPS:
        found = (mesh.mesh == mesh._rank).nonzero().tolist()
        mesh._coordinate_on_dim = found[0] if found else None
    else:
        mesh._coordinate_on_dim = mesh._compute_coordinate_on_dim()


# The meshes of torch 2.9: later ones have layouts, and the groups are kept by their root.
_KEEPS_ITS_GROUPS = not hasattr(DeviceMesh, "_compute_coordinate_on_dim")


def _make_groups(mesh: Any, overrides: Any) -> None:
    """A process group per dim of the mesh."""
    if _KEEPS_ITS_GROUPS:
        mesh._init_process_groups(overrides)
        return
    mesh._dim_group_names = mesh._init_process_groups(
        mesh._layout, mesh._rank_map, mesh._mesh_dim_names, overrides
    )
    for name in mesh._dim_group_names:
        mesh._get_root_mesh()._pg_registry[name] = _resolve_process_group(name)


def _all_gather_copy_in(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The inputs as one. torch copies them into the output, which the collective overwrites."""
    inputs, output = args[:2]
    return torch.cat([x.reshape(-1) for x in inputs]), output


def _split_with_sizes_copy(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    gathered, sizes = args[:2]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    for target, part in zip(kwargs["out"], gathered.split(list(sizes), dim)):
        target.copy_(part.reshape(target.shape))


def _chunk_cat(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Each tensor padded to `count` chunks along dim 0; chunk i of all of them, flat, as row i."""
    tensors, dim, count = args
    out = kwargs["out"]
    rows = []
    # Those of several dtypes are reduced in that of `out` (torch 2.15).
    for tensor in (tensor.to(out.dtype) for tensor in tensors):
        missing = -tensor.shape[dim] % count
        padding = tensor.new_zeros((missing, *tensor.shape[1:]))
        padded = torch.cat([tensor, padding]) if missing else tensor
        rows.append(padded.reshape(count, -1))
    out.copy_(torch.cat(rows, dim=1).reshape(out.shape))


def _record_grad_output_stream(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Nothing: what is recorded later runs later, so no memory is freed too early (torch 2.15)."""


# torch has these for its own devices only; elsewhere they would run on the CPU.
_OF_FULLY_SHARD = {
    "fsdp.all_gather_copy_in.default": _all_gather_copy_in,
    "fsdp.split_with_sizes_copy.default": _split_with_sizes_copy,
    "fsdp.chunk_cat.default": _chunk_cat,
    "fsdp.chunk_cat_mixed_dtype.default": _chunk_cat,
    "fsdp.record_grad_output_stream.default": _record_grad_output_stream,
}

"""Operators of torch.ops.xla that say something about a tensor inside a captured graph.

On tensors of other devices, and on the fake ones of a capture, they do nothing.
"""

import ast

import torch

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.spmd import marks
from torch_xdist.spmd.mesh import Mesh, checked_spec
from torch_xdist.torch_xla_compat.buffer_donation import set_buffer_donation


def dynamo_mark_sharding(
    input: torch.Tensor,
    device_ids: list[int],
    mesh_shape: list[int],
    axis_names: str,
    partition_spec: str,
) -> torch.Tensor:
    """The tensor of another device, as it is."""
    return input


def dynamo_mark_sharding_xla(
    input: torch.Tensor,
    device_ids: list[int],
    mesh_shape: list[int],
    axis_names: str,
    partition_spec: str,
) -> torch.Tensor:
    """Shard a device tensor over a mesh; returns it.

    Args:
        axis_names, partition_spec: tuples as Python writes them, "('data', None)".
    """
    mesh = Mesh(device_ids, tuple(mesh_shape), ast.literal_eval(axis_names))
    of = "dynamo_mark_sharding"
    spec = checked_spec(of, input.shape, ast.literal_eval(partition_spec))
    marks.mark(marks.on_device(marks.unwrapped(input), of), marks.tiling_over(mesh, spec, of))
    return input


def dynamo_set_buffer_donor_(t: torch.Tensor, should_donoate: bool) -> torch.Tensor:
    """The tensor of another device, as it is."""
    return t


def dynamo_set_buffer_donor_xla_(t: torch.Tensor, should_donoate: bool) -> torch.Tensor:
    """Let the program of a captured graph overwrite the buffer of a device tensor; returns it."""
    set_buffer_donation(t, should_donoate)
    return t


define(
    "dynamo_mark_sharding(Tensor input, int[] device_ids, int[] mesh_shape, str axis_names,"
    " str partition_spec) -> Tensor",
    dynamo_mark_sharding,
    device=dynamo_mark_sharding_xla,
)
define(
    "dynamo_set_buffer_donor_(Tensor t, bool should_donoate) -> Tensor",
    dynamo_set_buffer_donor_,
    device=dynamo_set_buffer_donor_xla_,
)

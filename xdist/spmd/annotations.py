"""`xs.mark_sharding` and its kin, by torch_xla's names."""

import ast
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.trace.plans import Plan
from torch_xdist.errors import ShardingError
from torch_xdist.spmd import marks
from torch_xdist.spmd.alike import alike
from torch_xdist.spmd.marks import unwrapped
from torch_xdist.spmd.mesh import Mesh, PartitionSpec, checked_spec
from torch_xdist.spmd.sharded_tensor import XLAShardedTensor

AnyTensor = torch.Tensor | XLAShardedTensor
PyTreeA = TypeVar("PyTreeA")
PyTreeB = TypeVar("PyTreeB")


def mark_sharding(t: AnyTensor, mesh: Mesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """Shard a tensor in place over a mesh; what is written to it later stays sharded so.

    A parameter or an input is moved at once; what is not computed yet is sharded by the program
    that computes it. Source: `torch_xla.distributed.spmd.mark_sharding`.

    Args:
        partition_spec: for each dim of the tensor the axes of the mesh that cut it, by index or
            name: one, several in a tuple, or None. Where they do not divide it, the last parts are
            padded.

    Returns the tensor with its sharding; the tensor itself serves as well.

    Raises ShardingError outside SPMD mode, for a spec that does not fit the tensor or the mesh, and
    for a tensor that is sharded in another way.
    """
    spec = checked_spec("mark_sharding", t.shape, partition_spec)
    tensor = marks.on_device(unwrapped(t), "mark_sharding")
    marks.mark(tensor, marks.tiling_over(mesh, spec, "mark_sharding"))
    return wrapped_over(t, mesh, spec)


def annotate_custom_sharding(
    t: AnyTensor, mesh: Mesh, partition_spec: PartitionSpec
) -> XLAShardedTensor:
    """Shard a tensor in another way from here on, also where it is sharded already."""
    spec = checked_spec("annotate_custom_sharding", t.shape, partition_spec)
    tensor = marks.on_device(unwrapped(t), "annotate_custom_sharding")
    marks.annotate(tensor, marks.tiling_over(mesh, spec, "annotate_custom_sharding"))
    return wrapped_over(t, mesh, spec)


def clear_sharding(t: AnyTensor) -> torch.Tensor:
    """Forget how a tensor is sharded: its values go back to the host until they are needed."""
    tensor = unwrapped(t)
    marks.clear(marks.on_device(tensor, "clear_sharding"))
    return tensor


def wrap_as_sharded_tensor(
    t: AnyTensor, mesh_shape: Any = None, partition_spec: Any = None
) -> XLAShardedTensor:
    """The tensor as one that knows its sharding; one that does learns what is given."""
    if not isinstance(t, XLAShardedTensor):
        return XLAShardedTensor(t, mesh_shape, partition_spec)
    t.mesh_shape = mesh_shape if mesh_shape is not None else t.mesh_shape
    t.partition_spec = partition_spec if partition_spec is not None else t.partition_spec
    if mesh_shape is not None or partition_spec is not None:
        t.invalidate_spec_cache()
    return t


def wrapped_over(t: AnyTensor, mesh: Mesh, spec: PartitionSpec) -> XLAShardedTensor:
    """`wrap_as_sharded_tensor` for a spec that may name the axes of the mesh."""
    found = wrap_as_sharded_tensor(t, mesh.mesh_shape, spec)
    found.axis_names = mesh.axis_names
    return found


def unwrap_sharded_tensor(t: AnyTensor) -> torch.Tensor:
    """The device tensor of a sharded one; any other as it is."""
    return unwrapped(t)


def wrap_if_sharded(x: Any) -> Any:
    """A device tensor whose sharding is known as an XLAShardedTensor; anything else as it is."""
    if x.__class__ is XlaTensor and marks.tiling_of(x) is not None:
        return XLAShardedTensor(x)
    return x


class MarkShardingFunction(torch.autograd.Function):
    """A copy of a tensor that is sharded, and so is its gradient."""

    @staticmethod
    def forward(
        ctx: Any, torch_tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec
    ) -> torch.Tensor:
        ctx.mesh = mesh
        ctx.partition_spec = partition_spec
        return torch.ops.xla.aot_mark_sharding(torch_tensor, str(mesh), str(partition_spec))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:  # type: ignore[override]
        mesh, spec = str(ctx.mesh), str(ctx.partition_spec)
        return torch.ops.xla.aot_mark_sharding(grad_output, mesh, spec), None, None


@torch.library.custom_op("xla::aot_mark_sharding", mutates_args=())
def _aot_mark_sharding(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    found = Mesh.from_str(mesh)
    if found is None:
        raise ShardingError(f"aot_mark_sharding: {mesh!r} is the text of no mesh")
    spec = ast.literal_eval(partition_spec)
    checked_spec("mark_sharding_with_gradients", t.shape, spec)
    tensor = marks.on_device(t, "mark_sharding_with_gradients")
    return marks.constrained(tensor, marks.tiling_over(found, spec, "mark_sharding_with_gradients"))


def _said_by(plan: Plan) -> Tiling:
    """The tiling that a row of this operator says."""
    mesh, spec = plan.args[1:3]
    return marks.tiling_over(Mesh.from_str(mesh), ast.literal_eval(spec), "aot_mark_sharding")  # type: ignore[arg-type]


marks.SAID_BY["xla.aot_mark_sharding.default"] = _said_by


@_aot_mark_sharding.register_fake
def aot_mark_sharding_fake(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    """Its result has the shape and dtype of the tensor."""
    return torch.empty_like(t)


def mark_sharding_with_gradients(
    t: AnyTensor, mesh: Mesh, partition_spec: PartitionSpec
) -> torch.Tensor:
    """A copy of an intermediate tensor that is sharded; so is the gradient that comes back.

    It guides XLA where a backward pass would otherwise gather what the forward had sharded.
    """
    spec = checked_spec("mark_sharding_with_gradients", t.shape, partition_spec)
    return MarkShardingFunction.apply(unwrapped(t), mesh, spec)  # type: ignore[no-any-return]


def shard_as(a: PyTreeA, b: PyTreeB) -> tuple[PyTreeA, PyTreeB]:
    """Two trees of tensors, which XLA shards alike, place by place, however it does."""
    ones, structure = tree_flatten(a)
    others, other_structure = tree_flatten(b)
    if structure != other_structure:
        raise ShardingError(
            f"shard_as: a and b must have the same structure. got {structure} and {other_structure}"
        )
    pairs = [_alike(x, y) for x, y in zip(ones, others)]
    return (
        tree_unflatten([x for x, _ in pairs], structure),
        tree_unflatten([y for _, y in pairs], structure),
    )


def _alike(x: Any, y: Any) -> tuple[Any, Any]:
    if x is None or y is None:
        return x, y

    tensors = [marks.on_device(unwrapped(t), "shard_as") for t in (x, y)]
    first, second = record_jax("xla.shard_as", alike, tensors)
    return first, second

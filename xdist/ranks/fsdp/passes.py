"""What FSDP records around a unit: wholes in front of its forward pass, shards behind its backward.

The wholes a module sees are attributes in the place of its parameters. Autograd leads from them
to the shards, so that tied, frozen and reused parameters need no cases of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from torch_xdist.core.devices.tensor import wrap
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.ranks.collective_ops import all_reduce, optimization_barrier
from torch_xdist.ranks.fsdp.flat_parameter import Owner
from torch_xdist.ranks.fsdp.shards import Bundle, Layout, state_of


@dataclass(eq=False)
class Sharded:
    """One sharded parameter of a unit: a parameter of the user's module, or several joined.

    Attributes:
        parts: for each of the user's parameters in it, its shape and all its names.
    """

    shard: nn.Parameter
    layout: Layout
    dtype: torch.dtype
    parts: list[tuple[torch.Size, list[Owner]]]


class Gather(torch.autograd.Function):
    """The wholes of a unit, of its shards; backward: the shards' gradients, of the wholes'."""

    @staticmethod
    def forward(
        ctx: Any, unit: Any, bundle: Bundle, *shards: nn.Parameter
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.unit, ctx.bundle = unit, bundle
        ctx.states = [state_of(shard) for shard in shards]
        wholes = tuple(wrap(value) for value in bundle.values)
        frozen = [whole for whole, shard in zip(wholes, shards) if not shard.requires_grad]
        ctx.mark_non_differentiable(*frozen)
        return wholes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        if [state_of(shard) for shard in ctx.bundle.shards] != ctx.states:
            raise RuntimeError(
                "FSDP: one of the variables needed for gradient computation has been modified by "
                "an inplace operation: a parameter changed between forward and backward; step the "
                "optimizer after the backward pass"
            )
        return None, None, *ctx.unit._reduce(ctx.bundle, gradients)


class Exit(torch.autograd.Function):
    """A unit's outputs as they are, with a word to the unit when their gradients arrive."""

    @staticmethod
    def forward(ctx: Any, unit: Any, bundle: Bundle, *outputs: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.unit, ctx.bundle = unit, bundle
        if unit.optimization_barrier_in_forward:
            return tuple(barrier(outputs))
        # What is changed in place later must not be what the module saved.
        return tuple(output.clone() for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        return None, None, *ctx.unit._begin_backward(ctx.bundle, gradients)


def barrier(tensors: Sequence[Any]) -> list[Any]:
    """The same values, which XLA does not compute together with what comes before. None: None."""
    there = [t for t in tensors if t is not None]
    results = iter(record_jax("xla.optimization_barrier", optimization_barrier, there))
    return [None if t is None else next(results) for t in tensors]


def apply_to_tensors(fn: Callable[[torch.Tensor], Any], container: Any) -> Any:
    """The same dicts, lists, tuples and sets with `fn(tensor)` in the place of each tensor."""
    if isinstance(container, set):
        return {apply_to_tensors(fn, value) for value in container}
    return pytree.tree_map(
        lambda x: apply_to_tensors(fn, x) if isinstance(x, set) else _applied(fn, x), container
    )


def _applied(fn: Callable[[torch.Tensor], Any], value: Any) -> Any:
    return fn(value) if isinstance(value, torch.Tensor) else value


def collect_tensors(container: Any) -> list[torch.Tensor]:
    """The tensors in dicts, lists, tuples and sets, each once."""
    found: dict[int, torch.Tensor] = {}
    apply_to_tensors(lambda tensor: found.setdefault(id(tensor), tensor), container)
    return list(found.values())


def parts_of(entry: Sharded, whole: torch.Tensor) -> list[torch.Tensor]:
    """The user's parameters in a whole."""
    if tuple(whole.shape) == tuple(entry.parts[0][0]) and len(entry.parts) == 1:
        return [whole]
    sizes = [shape.numel() for shape, _ in entry.parts]
    pieces = whole.split(sizes)
    return [piece.view(shape) for piece, (shape, _) in zip(pieces, entry.parts)]


def put(owners: Sequence[Owner], value: torch.Tensor) -> None:
    """Make it the attribute of its modules."""
    for _, module, name in owners:
        setattr(module, name, value)


def remove(owners: Sequence[Owner]) -> None:
    """Take the attribute away, as before a copy."""
    for _, module, name in owners:
        module.__dict__.pop(name, None)


def take_out(owners: Sequence[Owner]) -> None:
    """Let the modules forget the parameter, whose place an attribute will take."""
    for _, module, name in owners:
        module._parameters.pop(name, None)


def clip_by_norm(
    gradients: Sequence[torch.Tensor],
    max_norm: float,
    norm_type: float,
    groups: Sequence[Sequence[int]] | None,
    where: torch.device,
) -> torch.Tensor:
    """Scale this rank's shards of the gradients by the norm over all ranks, which it returns."""
    norms = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) for g in gradients]
    local = torch.stack(norms) if norms else torch.zeros(1, device=where)
    if norm_type == float("inf"):
        total = all_reduce("max", local.max(), groups=groups)
    else:
        total = all_reduce("sum", local.pow(norm_type).sum(), groups=groups).pow(1 / norm_type)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)
    return total

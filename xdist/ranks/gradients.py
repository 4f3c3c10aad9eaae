"""Average the gradients over the ranks, then step: the data parallel half of a training step.

The reductions are recorded into the trace like any other row, so XLA runs them with the backward
pass. Nothing here cuts, except where a barrier is asked for.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_xdist import settings, world
from torch_xdist.core.composites.sparse import SparseXlaTensor, sparse, take_over
from torch_xdist.core.devices import steps
from torch_xdist.ranks import collective_ops

Groups = Sequence[Sequence[int]] | None
_MB = 1024 * 1024


def fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients an optimizer will use, in the order of its parameters."""
    return [parameter.grad for parameter in _parameters(optimizer)]


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Those that have a gradient."""
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    return [parameter for parameter in listed if parameter.grad is not None]


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Replace every gradient by its mean over all ranks, in place.

    The sum runs over `groups`, the division by the size of the whole world, as in torch_xla. With
    ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB above zero the gradients travel in buckets of that size,
    the last layers first. One rank: nothing happens. Gradients of shards of FSDP are left alone:
    they are averaged already.
    """
    count = world.world_size()
    if count <= 1 and not settings.current().always_all_reduce:
        return
    gradients = [p.grad for p in _parameters(optimizer) if not getattr(p, "_is_sharded", False)]
    bucket_mb = settings.current().bucket_mb
    if bucket_mb > 0:
        gradients.reverse()
    all_reduce_bucketized_gradients(gradients, 1.0 / count, groups, pin_layout, bucket_mb)


def all_reduce_bucketized_gradients(
    gradients: Sequence[torch.Tensor],
    scale: float,
    groups: Groups,
    pin_layout: bool,
    bucket_cap_mb: int = 0,
) -> None:
    """Sum the gradients over the groups and scale them, in place, bucket by bucket.

    Sparse ones get the entries of all ranks, of which each must bring as many.

    Args:
        bucket_cap_mb: the size of a bucket in MiB; 0: all in one.
    """
    strided: list[torch.Tensor] = []
    for gradient in gradients:
        if isinstance(gradient, SparseXlaTensor):
            _join_entries(gradient, scale, groups, pin_layout)
        else:
            strided.append(gradient)
    for bucket in buckets(strided, bucket_cap_mb * _MB):
        collective_ops.all_reduce(
            collective_ops.REDUCE_SUM, bucket, scale=scale, groups=groups, pin_layout=pin_layout
        )


def _join_entries(
    gradient: SparseXlaTensor, scale: float, groups: Groups, pin_layout: bool
) -> None:
    gather = functools.partial(collective_ops.all_gather, groups=groups, pin_layout=pin_layout)
    indices = gather(gradient.indices_part, dim=1)
    values = gather(gradient.values_part, dim=0) * scale
    take_over(gradient, sparse(indices, values, gradient.shape))


def buckets(tensors: Sequence[torch.Tensor], cap_bytes: int) -> Iterator[list[torch.Tensor]]:
    """The tensors in order, in lists of at most `cap_bytes` (or of one tensor); 0: one list."""
    bucket: list[torch.Tensor] = []
    filled = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if bucket and cap_bytes and filled + size > cap_bytes:
            yield bucket
            bucket, filled = [], 0
        bucket.append(tensor)
        filled += size
    if bucket:
        yield bucket


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool | Callable[[], Any] = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Groups = None,
    pin_layout: bool = True,
) -> Any:
    """Average the gradients over all ranks, step the optimizer, and return what it returned.

    Args:
        barrier: also end the step (`sync`). Needed where no MpDeviceLoader does. A callable in
            this place is the closure of the oldest releases: it is handed to the optimizer, and
            the step ends.
        optimizer_args: keyword arguments of `optimizer.step`.
        groups: the ranks that sum with each other; the division is by the whole world.
    """
    arguments = dict(optimizer_args or {})
    if callable(barrier):
        arguments["closure"] = barrier
    reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    result = optimizer.step(**arguments)
    if barrier:
        steps.sync()
    return result


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, in place, and end the step."""
    tensors = [p.data for p in model.parameters()] + list(model.buffers())
    if tensors and world.world_size() > 1:
        collective_ops.collective_broadcast(tensors)
    steps.sync()

"""Collectives that autograd can pass through, and the batch norm over all ranks.

The backward passes are local, as in torch_xla: the gradient of a sum over ranks is the incoming
gradient, not its sum. `SyncBatchNorm` is the exception and reduces in both directions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torch_xdist import world
from torch_xdist.ranks import collective_ops
from torch_xdist.ranks.sync_batch_norm import sync_batch_norm

Groups = Sequence[Sequence[int]] | None


class AllReduce(torch.autograd.Function):
    """`all_reduce`, as autograd sees it."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, reduce_type: str, scale: float, groups: Groups
    ) -> torch.Tensor:
        output = collective_ops.all_reduce(reduce_type, input, groups=groups)
        ctx.reduce_type, ctx.scale = reduce_type, scale
        ctx.save_for_backward(input, output)
        return output * scale

    @staticmethod
    def backward(
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor | None, None, None, None]:
        value, output = ctx.saved_tensors
        scaled = grad_output * ctx.scale
        if ctx.reduce_type == collective_ops.REDUCE_SUM:
            return scaled, None, None, None
        if ctx.reduce_type == collective_ops.REDUCE_MUL:
            whole = torch.where(value == 0, torch.zeros_like(value), output / value)
            return scaled * whole, None, None, None
        return scaled * (value == output).to(grad_output.dtype), None, None, None


_DIFFERENTIABLE = (
    collective_ops.REDUCE_SUM,
    collective_ops.REDUCE_MUL,
    collective_ops.REDUCE_MIN,
    collective_ops.REDUCE_MAX,
)


def all_reduce(
    reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Groups = None
) -> torch.Tensor:
    """The reduction of `value` over all ranks (or each group), times `scale`.

    Backward is local: sum gives grad * scale; mul also the product of the others; min and max let
    the gradient through where this rank's value won. Raises RuntimeError for other reductions.
    """
    if reduce_type not in _DIFFERENTIABLE:
        raise RuntimeError(
            f"xf.all_reduce: Unsupported reduce type: {reduce_type}; gradients exist for"
            f" {', '.join(_DIFFERENTIABLE)}"
        )
    return AllReduce.apply(value, reduce_type, scale, groups)


class AllGather(torch.autograd.Function):
    """`all_gather`, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim, ctx.size = dim, input.size(dim)
        return collective_ops.all_gather(input, dim=dim)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad_output.narrow(ctx.dim, world.rank() * ctx.size, ctx.size), None


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The ranks' values side by side along `dim`; backward is this rank's slice of the gradient."""
    return AllGather.apply(value, dim)


class AllReduceSumLayer(torch.autograd.Function):
    """The sum over all ranks, whose gradient is summed over them too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return collective_ops.all_reduce(collective_ops.REDUCE_SUM, x)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        return collective_ops.all_reduce(collective_ops.REDUCE_SUM, grad_output)


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """The product of a weight whose columns are divided over the ranks and this rank's `x`.

    The weight stays where it is: each rank multiplies its columns by the rows that they meet of
    all ranks' `x`, and the products are summed.

    Args:
        w: [n, k], the columns of this rank, out of [n, k * ranks].
        x: [k * ranks, m], of this rank; of one shape on all.
        split: divides m, and with it what is gathered at a time.

    Returns [n, m].
    """
    rank, ranks, inner = world.rank(), world.world_size(), w.size(1)
    if x.size(0) != inner * ranks:
        raise RuntimeError(
            f"xf.distributed_mm: x has {x.size(0)} rows, and w {inner} columns on each of {ranks}"
            f" ranks; they must be {inner * ranks}"
        )
    results = []
    for part in x.split(_part(x, 1, split), dim=1):
        rows = all_gather(part, dim=1).narrow(0, rank * inner, inner)
        summed = all_reduce(collective_ops.REDUCE_SUM, w @ rows)
        results.append(summed.narrow(1, rank * part.size(1), part.size(1)))
    return torch.cat(results, dim=1)


def _part(tensor: torch.Tensor, dim: int, split: int) -> int:
    size = tensor.size(dim)
    if size % split:
        raise RuntimeError(
            f"xf.distributed_mm: {split} does not divide dim {dim} of {tuple(tensor.shape)}; choose"
            " a split that does"
        )
    return size // split


class SyncBatchNorm(nn.Module):
    """Batch norm over [n, c, ...] whose statistics are those of all ranks' batches together.

    Args:
        num_features: c.
        eps: added to the variance.
        momentum: weight of a new batch in the running statistics.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if batch.dim() < 2 or batch.size(1) != self.num_features:
            raise ValueError(
                f"SyncBatchNorm({self.num_features}): the input has shape {tuple(batch.shape)};"
                f" it needs [n, {self.num_features}, ...]"
            )
        running = (self.running_mean, self.running_var)
        if not self.training:
            return nn.functional.batch_norm(batch, *running, self.weight, self.bias, eps=self.eps)
        return sync_batch_norm(batch, self.weight, self.bias, running, self.momentum, self.eps)

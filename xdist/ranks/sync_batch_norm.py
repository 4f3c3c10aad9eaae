"""Batch norm over the batches of all ranks, for `nn.SyncBatchNorm` and `xf.SyncBatchNorm`.

Each direction exchanges once: the ranks' statistics in the forward pass, two sums per channel in
the backward pass. Ranks may have batches of different sizes.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from torch_xdist import world
from torch_xdist.collectives import inside
from torch_xdist.collectives.groups import Groups
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.ranks import collective_ops
from torch_xdist.releases import patches


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        var: torch.Tensor,
        total: torch.Tensor,
        eps: float,
        groups: Groups | None,
    ) -> torch.Tensor:
        scale = torch.rsqrt(var + eps)
        ctx.save_for_backward(batch, weight, mean, scale, total)
        ctx.groups, ctx.has_bias = groups, bias is not None
        factor = scale if weight is None else scale * weight
        normal = (batch.float() - _wide(mean, batch)) * _wide(factor, batch)
        return (normal if bias is None else normal + _wide(bias, batch)).to(batch.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        batch, weight, mean, scale, total = ctx.saved_tensors
        wide, centered = gradient.float(), batch.float() - _wide(mean, batch)
        sums = wide.sum(_dims(batch)), (wide * centered).sum(_dims(batch))
        both = _summed(torch.stack(sums), ctx.groups) / total
        slope = _wide(scale.square() * both[1], batch)
        factor = scale if weight is None else scale * weight
        to_batch = (wide - _wide(both[0], batch) - centered * slope) * _wide(factor, batch)
        to_weight = None if weight is None else (sums[1] * scale).to(weight.dtype)
        to_bias = sums[0].to(weight.dtype) if ctx.has_bias else None
        return to_batch.to(batch.dtype), to_weight, to_bias, None, None, None, None, None


def _dims(batch: torch.Tensor) -> list[int]:
    return [0, *range(2, batch.dim())]


def _wide(value: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return value.float().view(1, -1, *(1 for _ in batch.shape[2:]))


def _summed(value: torch.Tensor, groups: Groups | None) -> torch.Tensor:
    def total(x: Any) -> Any:
        return inside.all_reduce([x], "sum", groups)[0]

    return collective_ops.record("xla.batch_norm_sums", total, [value], groups)[0]


@torch.no_grad()
def statistics(
    batch: torch.Tensor, groups: Groups | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean [c], variance [c] and count [1] of all ranks' [n, c, ...]; the same on every rank.

    The means and variances are merged, not sums of squares, which would cancel.
    """
    var, mean = torch.var_mean(batch.float(), _dims(batch), correction=0)
    count = mean.new_full((1,), float(batch.numel() // batch.size(1)))

    def gather(x: Any) -> Any:
        return inside.all_gather_stacked(x, groups)

    packed = torch.cat([mean, var, count])
    parts = collective_ops.record("xla.batch_norm_statistics", gather, [packed], groups)[0]
    means, variances, counts = parts.split([batch.size(1), batch.size(1), 1], dim=1)
    total = counts.sum(0)
    mean = (means * counts).sum(0) / total
    var = ((variances + (means - mean).square()) * counts).sum(0) / total
    return mean, var, total


def sync_batch_norm(
    batch: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running: tuple[torch.Tensor | None, torch.Tensor | None],
    momentum: float | torch.Tensor,
    eps: float,
    groups: Groups | None = None,
) -> torch.Tensor:
    """Normalize [n, c, ...] by the statistics of all ranks (of each group), and track them.

    Args:
        running: the running mean and variance, written in place; None: not tracked.
        momentum: the weight of this batch in them.
    """
    mean, var, total = statistics(batch, groups)
    with torch.no_grad():
        unbiased = var * (total / (total - 1).clamp(min=1))
        for tracked, value in zip(running, (mean, unbiased)):
            if tracked is not None:
                tracked.add_((value.to(tracked.dtype) - tracked) * momentum)
    return _Normalize.apply(batch, weight, bias, mean, var, total, eps, groups)


def register() -> None:
    """Let `nn.SyncBatchNorm` take device tensors; a second call changes nothing."""
    patches.wrap("torch.nn.SyncBatchNorm.forward", _of_all_ranks)


def _of_all_ranks(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(usual)
    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        if input.__class__ is not XlaTensor:
            return usual(self, input)
        count, groups = _group(self.process_group)
        if count == 1 or not self.training:
            return nn.modules.batchnorm._BatchNorm.forward(self, input)
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        return sync_batch_norm(
            input, self.weight, self.bias, _tracked(self), _momentum(self), self.eps, groups
        )

    return forward


def _group(process_group: Any) -> tuple[int, Groups | None]:
    """How many ranks share statistics, and which; torch.distributed need not be there."""
    if process_group is None:
        return world.world_size(), None
    ranks = tuple(dist.get_process_group_ranks(process_group))
    everybody = ranks == tuple(range(world.world_size()))
    return len(ranks), None if everybody else (ranks,)


def _tracked(module: nn.SyncBatchNorm) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if not module.track_running_stats:
        return None, None
    return module.running_mean, module.running_var


def _momentum(module: nn.SyncBatchNorm) -> float | torch.Tensor:
    """Counts the batch; its weight is a tensor for the cumulative average, so nothing is read."""
    if module.track_running_stats and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None:
            return 1.0 / module.num_batches_tracked.float()
    return 0.0 if module.momentum is None else module.momentum

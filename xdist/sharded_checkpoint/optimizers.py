"""The state of an optimizer that has not stepped yet, so that a checkpoint can be read into it."""

import torch
from torch.utils._pytree import tree_map

from torch_xdist.core.devices import steps
from torch_xdist.spmd import marks


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Step with gradients of zero, sharded as the parameters are, so that the states exist.

    The step may change parameters (weight decay does), so restore a checkpoint right after it.
    """
    steps.sync(wait=True)

    def zero_grad(x: object) -> object:
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.grad = torch.zeros_like(x, requires_grad=False)
            tiling = marks.tiling_of(x)  # type: ignore[arg-type]
            if tiling is not None:
                marks.mark(x.grad, tiling)  # type: ignore[arg-type]
        return x

    tree_map(zero_grad, optimizer.param_groups)
    optimizer.step()
    steps.sync(wait=True)
    return optimizer

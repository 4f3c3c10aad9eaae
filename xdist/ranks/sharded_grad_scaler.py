"""Ranks that each hold a part of one model's gradients skip the same steps of a gradient scaler.

An overflow in one rank's part would make that rank alone skip its step, and the model's parts
would no longer belong together. `_is_sharded` marks such parameters and optimizers.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.ranks import collective_ops
from torch_xdist.releases import patch_table, patches, probes


def register() -> None:
    """Let torch's scaler share what it found; a second call changes nothing."""
    probes.require(patch_table.SHARDED_GRADIENTS)
    patches.wrap("torch.amp.GradScaler._unscale_grads_", _sharing)


def _sharing(usual: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def unscale(scaler: Any, optimizer: Any, *arguments: Any) -> dict[torch.device, torch.Tensor]:
        found = usual(scaler, optimizer, *arguments)
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        for part in (optimizer, *parameters):
            if getattr(part, "_is_sharded", False):
                collective_ops.all_reduce(
                    collective_ops.REDUCE_MAX, list(found.values()), groups=part.sharding_groups
                )
                break
        return found

    return unscale

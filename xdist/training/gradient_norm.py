"""Gradients scaled to a norm without a look at a value, by torch_xla's name of torch's function."""

from collections.abc import Iterable

import torch


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_`, which cuts no step here: scale in place to a norm at most.

    Args:
        norm_type: p, or infinity.
        error_if_nonfinite: raise RuntimeError for a norm that is no number, which cuts the step.
        foreach: only False or None, as in torch_xla.

    Returns the norm before, on the device.
    """
    if foreach:
        raise RuntimeError(
            "clip_grad_norm_: foreach=True is not supported with XLA, which joins the operators by"
            " itself; leave it out"
        )
    listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    if not any(parameter.grad is not None for parameter in listed):
        return torch.zeros((), device="xla")
    return torch.nn.utils.clip_grad_norm_(
        listed, max_norm, norm_type, error_if_nonfinite, foreach=False
    )

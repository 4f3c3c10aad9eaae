"""Mixed precision: torch's autocast and gradient scaler, for the xla device."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch


class autocast(torch.autocast):
    """Run the operators of the cast lists in a lower precision, inside the block or function.

    Args:
        device: an xla device.
        enabled: False makes the block an ordinary one.
        dtype: torch.bfloat16 (the default) or torch.float16.
        cache_enabled: keep the cast copies of the weights inside the block.
    """

    def __init__(
        self,
        device: torch.device | str,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        kind = torch.device(device).type
        if kind != "xla":
            warnings.warn(
                f"torch_xla.amp.autocast: {device} is no xla device, so it changes nothing here;"
                " use torch.autocast for other devices",
                stacklevel=2,
            )
        super().__init__(
            "xla",
            enabled=enabled and kind == "xla",
            dtype=dtype or torch.bfloat16,
            cache_enabled=cache_enabled,
        )

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return wrapped


class GradScaler(torch.amp.GradScaler):
    """Scales the loss so that float16 gradients do not vanish, and skips steps that overflow.

    With an optimizer of `torch_xla.amp.syncfree` the skip is decided on the device; with others
    each step reads one number.

    Args:
        init_scale: the first scale.
        growth_factor: the scale is multiplied by it after `growth_interval` good steps.
        backoff_factor: the scale is multiplied by it after an overflow.
        growth_interval: in steps.
        enabled: False makes every method do nothing.
        use_zero_grad: accepted for torch_xla's sake: overflowed gradients are replaced by zeros
            and the step is taken, instead of skipped.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        super().__init__(
            "xla",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
        self._zero_grad = use_zero_grad

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        """torch's step; what overflowed is decided where the optimizer can tell."""
        found = sum(optimizer_state["found_inf_per_device"].values())
        if getattr(optimizer, "takes_found_inf", False):
            return optimizer.step(*args, found_inf=found, **kwargs)  # type: ignore[call-overload]
        if not self._zero_grad:
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    grad = parameter.grad
                    grad.copy_(torch.where(found > 0, torch.zeros_like(grad), grad))
        return optimizer.step(*args, **kwargs)

"""SGD, Adam and AdamW whose step can be skipped by a flag that stays on the device.

`step(found_inf=flag)` with a flag above zero leaves parameters and state as they are. Reading the
flag would cut the trace in every step; here the old and the new values are selected by it.
"""

from collections.abc import Callable
from typing import Any

import torch


class _SkipsOnDevice(torch.optim.Optimizer):
    """Adds `found_inf` to an optimizer's step."""

    takes_found_inf = True

    def step(  # type: ignore[override]
        self,
        closure: Callable[[], Any] | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> Any:
        """Step, except where `found_inf` (a tensor of one number on the device) is not zero."""
        if found_inf is None:
            return super().step(closure)
        before = [(tensor, tensor.clone()) for tensor in self._tensors()]
        known = {id(tensor) for tensor, _ in before}
        result = super().step(closure)
        skip = found_inf.reshape(()) > 0
        with torch.no_grad():
            for tensor, old in before:
                tensor.copy_(torch.where(skip, old, tensor))
            for tensor in self._tensors():
                if id(tensor) not in known:
                    # State that this step made starts at zero, as if the step had not been.
                    tensor.copy_(torch.where(skip, torch.zeros_like(tensor), tensor))
        return result

    def _tensors(self) -> list[torch.Tensor]:
        parameters = [p for group in self.param_groups for p in group["params"]]
        touched = [p for p in parameters if p.grad is not None]
        state = [
            value
            for parameter in touched
            for value in self.state.get(parameter, {}).values()
            if isinstance(value, torch.Tensor) and value.device.type == "xla"
        ]
        # Of a DTensor, this rank's part.
        return [getattr(tensor, "_local_tensor", tensor) for tensor in touched + state]


class SGD(_SkipsOnDevice, torch.optim.SGD):
    """torch.optim.SGD with a step that a flag on the device can skip."""


class Adam(_SkipsOnDevice, torch.optim.Adam):
    """torch.optim.Adam with a step that a flag on the device can skip.

    Its step counters live on the device (`capturable`), so that a skipped step is not counted.
    """

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"capturable": True, "foreach": False, **kwargs})


class AdamW(_SkipsOnDevice, torch.optim.AdamW):
    """torch.optim.AdamW with a step that a flag on the device can skip.

    Its step counters live on the device (`capturable`), so that a skipped step is not counted.
    """

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"capturable": True, "foreach": False, **kwargs})

"""`torch.compile` without a backend: torch's inductor, which makes no code for this device.

A graph with device tensors goes to the backend "openxla" instead, with a warning; others, and those
of scripts that name a backend, go where they went.
"""

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.files.saving import is_device_tensor
from torch_xdist.releases import patches

_TOLD = (
    "torch.compile: inductor, its default backend, makes no code for xla devices, so this graph is"
    ' compiled by the backend "openxla"; mode= and options= have no effect there. Say'
    ' torch.compile(..., backend="openxla") to choose it, or leave torch.compile out: steps are'
    " recorded and compiled whole without it"
)


def register() -> None:
    """Complete what torch.compile takes where no backend is named."""
    patches.wrap("torch._TorchCompileInductorWrapper.__call__", _by_openxla_here)


def _by_openxla_here(usual: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def __call__(self: Any, model_: Any, inputs_: Sequence[Any], **more: Any) -> Any:
        made = (node.meta.get("example_value") for node in model_.graph.nodes)
        if not any(map(is_device_tensor, itertools.chain(inputs_, made))):
            return usual(self, model_, inputs_, **more)
        tell_once()
        return torch._dynamo.lookup_backend("openxla")(model_, list(inputs_))

    return __call__


@functools.cache
def tell_once() -> None:
    """Warn at the first such graph of a process, with the user's line."""
    warnings.warn(f"{user_line()}: {_TOLD}", stacklevel=2)

"""How torch's chunked linear cross entropy adds up half precision on the device.

Its options choose by device type, and for types torch does not know they choose sums in half
precision. The device takes what they choose for the CPU: sums in float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.releases import patches

_CPU = torch.device("cpu")


def register() -> None:
    """Answer for the device. Called once; torch before 2.13 has no such loss."""
    patches.wrap("torch.nn.LinearCrossEntropyOptions._adjust", _as_on_the_cpu)


def _as_on_the_cpu(usual: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def adjust(*args: Any, **kwargs: Any) -> Any:
        return usual(*map(_chosen_for, args), **{n: _chosen_for(v) for n, v in kwargs.items()})

    return adjust


def _chosen_for(value: Any) -> Any:
    return _CPU if isinstance(value, torch.device) and value.type == "xla" else value

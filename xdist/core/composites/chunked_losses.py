"""How torch's chunked linear cross entropy adds up half precision on the device.

Its options choose by device type, and for types torch does not know they choose sums in half
precision. The device takes what they choose for the CPU: sums in float32.
"""

import sys
from typing import Any

import torch

_CPU = torch.device("cpu")


def register() -> None:
    """Answer for the device. Called once; torch before 2.13 has no such loss."""
    options = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    resolve = getattr(options, "_resolve_auto_acc_dtype", None)
    defaults = getattr(sys.modules.get(getattr(options, "__module__", "")), "_AUTO_DEFAULTS", None)
    if resolve is None or defaults is None:
        return

    def resolve_auto_acc_dtype(dtype: torch.dtype, device: torch.device | None) -> Any:
        on_device = device is not None and device.type == "xla"
        return resolve(dtype, _CPU if on_device else device)

    options._resolve_auto_acc_dtype = staticmethod(resolve_auto_acc_dtype)  # type: ignore[union-attr]
    known = [(dtype, choice) for (kind, dtype), choice in defaults.items() if kind == "cpu"]
    defaults.update({("xla", dtype): choice for dtype, choice in known})

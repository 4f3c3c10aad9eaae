"""The tensors a collective is given: one, or a list of them."""

from collections.abc import Iterable
from typing import Any

import torch

from torch_xdist.collectives.errors import ArgumentError


def tensors_of(name: str, value: Any) -> list[torch.Tensor]:
    """The device tensor, or those of a list, as a list."""
    if isinstance(value, torch.Tensor):
        return [getattr(value, "global_tensor", value)]  # An XLAShardedTensor holds it.
    tensors = list(value) if isinstance(value, Iterable) else value
    check_lists(name, tensors, None)
    return [getattr(tensor, "global_tensor", tensor) for tensor in tensors]


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether it is one of torch's fakes, which only have a shape, a dtype and a device."""
    return hasattr(tensor, "fake_mode")


def check_lists(name: str, inputs: Any, outputs: Any) -> None:
    """Raise TypeError unless both are lists of tensors, ArgumentError unless equally long."""
    for what, values in (("input", inputs), ("output", outputs)):
        if values is None and what == "output":
            continue
        is_list = isinstance(values, list)
        wrong = [v for v in values if not isinstance(v, torch.Tensor)] if is_list else []
        if not is_list or wrong:
            found = type(wrong[0] if wrong else values).__name__
            raise TypeError(f"{name}: {what} holds a {found}; give it a tensor or a list of them")
    if outputs is not None and len(outputs) != len(inputs):
        raise ArgumentError(
            f"{name}: {len(inputs)} inputs, and output has {len(outputs)} tensors; give one each"
        )


def dtype_and_shape(tensor: torch.Tensor) -> str:
    """A tensor's dtype and shape, as messages show them: "float32[2, 3]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

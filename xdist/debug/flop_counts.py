"""What torch's FlopCounterMode has to know of operators that only this device sees."""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from torch_xdist.releases import late_imports


def register() -> None:
    """Tell torch's counter, now or when somebody imports it."""
    late_imports.when_imported("torch.utils.flop_counter", _tell)


def _tell(counter: ModuleType) -> None:
    target = torch.ops.aten.linear_backward
    if target not in counter.flop_registry:
        counter.register_flop_formula(target)(linear_backward)


def linear_backward(
    input: Sequence[int],
    grad_output: Sequence[int],
    weight: Sequence[int],
    output_mask: Sequence[bool],
    **_: Any,
) -> int:
    """Operations of a linear layer's gradients: a product for each of input and weight.

    Elsewhere torch makes the layer of products, which its counter knows.

    Args:
        input, grad_output, weight: shapes [..., in], [..., out] and [out, in].
        output_mask: whether the gradients of input, weight and bias are wanted.
    """
    return 2 * math.prod(grad_output) * weight[-1] * sum(map(bool, output_mask[:2]))

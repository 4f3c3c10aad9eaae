"""The gradient of `cumprod` as one row.

torch makes it of three running sums and products, masks for zeros and a division; a kernel under
the AutogradLazy key catches `aten::cumprod_backward` and records what `ops/cumulative.py` computes.
"""

import functools
from typing import Any

import torch

from torch_xdist.core.composites.attention import are_ours
from torch_xdist.core.jax_side.differentiable import differentiable_row
from torch_xdist.ops.cumulative import product_gradient

_libraries: list[torch.library.Library] = []


def _kernel(
    grad: torch.Tensor, input: torch.Tensor, dim: int, output: torch.Tensor
) -> torch.Tensor:
    tensors = [grad, input, output]
    if not are_ours(*tensors) or not input.numel():
        decomposed: Any = torch.ops.aten.cumprod_backward.default.decompose(
            *tensors[:2], dim, output
        )
        return decomposed  # type: ignore[no-any-return]
    row = functools.partial(_gradient, dim)
    return differentiable_row("cumprod_backward", row, tensors, dim)[0]


def _gradient(dim: int, grad: Any, input: Any, output: Any) -> list[Any]:
    return [product_gradient(grad, input, output, dim)]


def register() -> None:
    """Let the gradient of running products arrive whole."""
    library = torch.library.Library("aten", "IMPL", "AutogradLazy")
    library.impl("cumprod_backward", _kernel)
    _libraries.append(library)

"""The gradients of `cumprod`, `cummax` and `cummin`, each as one row.

torch makes the first of three running sums and products, masks for zeros and a division, and the
others of a scatter; kernels under the AutogradLazy key catch `aten::cumprod_backward` and
`aten::cummaxmin_backward` and record what `ops/cumulative.py` computes.
"""

import functools
from typing import Any

import torch

from torch_xdist.core.composites.attention import are_ours
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side.differentiable import differentiable_row
from torch_xdist.ops.cumulative import extreme_gradient, product_gradient

_libraries: list[torch.library.Library] = []


def _of_products(
    grad: torch.Tensor, input: torch.Tensor, dim: int, output: torch.Tensor
) -> torch.Tensor:
    tensors = [grad, input, output]
    if not are_ours(*tensors) or not input.numel():
        return _decomposed("cumprod_backward", grad, input, dim, output)
    row = functools.partial(_product_gradient, dim)
    return differentiable_row("cumprod_backward", row, tensors, dim)[0]


def _of_extremes(
    grad: torch.Tensor, input: torch.Tensor, indices: torch.Tensor, dim: int
) -> torch.Tensor:
    tensors = [grad, indices]
    if not are_ours(grad) or type(indices) is not XlaTensor or not input.numel():
        return _decomposed("cummaxmin_backward", grad, input, indices, dim)
    row = functools.partial(_extreme_gradient, dim)
    return differentiable_row("cummaxmin_backward", row, tensors, dim)[0]


def _decomposed(name: str, *args: Any) -> torch.Tensor:
    made: torch.Tensor = getattr(torch.ops.aten, name).default.decompose(*args)
    return made


def _product_gradient(dim: int, grad: Any, input: Any, output: Any) -> list[Any]:
    return [product_gradient(grad, input, output, dim)]


def _extreme_gradient(dim: int, grad: Any, indices: Any) -> list[Any]:
    return [extreme_gradient(grad, indices, dim)]


def register() -> None:
    """Let the gradients of running products and extremes arrive whole."""
    library = torch.library.Library("aten", "IMPL", "AutogradLazy")
    library.impl("cumprod_backward", _of_products)
    library.impl("cummaxmin_backward", _of_extremes)
    _libraries.append(library)

"""Shapes and dtypes of the results of operators for which torch has no meta kernel.

The plan of a row asks torch's meta kernels what its results look like. Where torch has none,
one is entered here, so that the row is used at all.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

_LIBRARY = torch.library.Library("aten", "IMPL", "Meta")
Meta = Callable[..., Any]


def _like_operand(index: int) -> Meta:
    """A result like one operand."""
    return lambda *operands, **_: torch.empty_like(operands[index])


def _broadcast(*operands: torch.Tensor, **_: Any) -> torch.Tensor:
    shape = torch.broadcast_shapes(*(x.shape for x in operands if isinstance(x, torch.Tensor)))
    return operands[0].new_empty(shape)


def _reduced(self: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    return torch.amax(self, [] if dim is None else [dim], keepdim)


def _aminmax(
    self: torch.Tensor, dim: int | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return _reduced(self, dim, keepdim), _reduced(self, dim, keepdim)


def _histogram(self: torch.Tensor, bins: int = 100, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return self.new_empty(bins), self.new_empty(bins + 1)


def _histogram_between(
    self: torch.Tensor, bins: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return self.new_empty(bins.numel() - 1), torch.empty_like(bins)


def _bin_edges(self: torch.Tensor, bins: Sequence[int], **_: Any) -> list[torch.Tensor]:
    return [self.new_empty(count + 1) for count in bins]


def _histogramdd(self: torch.Tensor, bins: Sequence[int], **_: Any) -> torch.Tensor:
    return self.new_empty(tuple(bins))


def _histogramdd_between(
    self: torch.Tensor, bins: Sequence[torch.Tensor], **_: Any
) -> torch.Tensor:
    return self.new_empty([edges.numel() - 1 for edges in bins])


def _norm(
    self: torch.Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> torch.Tensor:
    return torch.linalg.vector_norm(self, 2, dim, keepdim, dtype=dtype)


_KERNELS: dict[str, Meta] = {
    "_aminmax": _aminmax,
    "_aminmax.dim": _aminmax,
    "_dirichlet_grad": _like_operand(0),
    "_histogramdd_bin_edges": _bin_edges,
    "_histogramdd_from_bin_cts": _histogramdd,
    "_histogramdd_from_bin_tensors": _histogramdd_between,
    "_logcumsumexp": _like_operand(0),
    "_masked_softmax": _like_operand(0),
    "_masked_softmax_backward": _like_operand(0),
    "_sample_dirichlet": _like_operand(0),
    "_standard_gamma_grad": _broadcast,
    "binomial": _broadcast,
    "glu_jvp": _like_operand(0),
    "histogram.bin_ct": _histogram,
    "histogram.bins_tensor": _histogram_between,
    "native_norm": _norm,
    "native_norm.ScalarOpt_dim_dtype": _norm,
}


def _enter(name: str, kernel: Meta) -> None:
    try:
        _LIBRARY.impl(name, kernel)
    except RuntimeError:
        # A release of torch that has this kernel, or lacks the operator.
        return


for _name, _kernel in _KERNELS.items():
    _enter(_name, _kernel)

"""`quantized_matmul_int8`, by torch_xla's names."""

import torch

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.errors import ArgumentError
from torch_xdist.kernels.quantized_matmul import quantized_matmul_xla
from torch_xdist.kernels.torch_ops import warn_of_no_values

_Maybe = torch.Tensor | None


def quantized_matmul_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: _Maybe = None,
    quant_block_size: _Maybe = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> torch.Tensor:
    """[b, i] times an int8 weight [o, i] with scales [o]: [b, o] in the dtype of `x`.

    JAX has no Pallas kernel for it: it is XLA's own product of integers on TPUs as well, so the
    block sizes, which are that kernel's, are of no consequence.
    """
    if quant_block_size is not None:
        raise ArgumentError(
            "quantized_matmul_int8: quant_block_size is not supported; use"
            " torch.ops.xla.quantized_matmul with block_size="
        )
    found = quantized_matmul_xla(x, w, scalar, zero_point, quantize_activation=quantize_activation)
    return found.to(x.dtype)


def quantized_matmul_int8_xla(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: _Maybe = None,
    quant_block_size: _Maybe = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> torch.Tensor:
    """`torch.ops.xla.quantized_matmul_int8` of tensors that have values."""
    blocks = batch_block_size, out_block_size, in_block_size
    weight = w, scalar, zero_point, quant_block_size
    return quantized_matmul_int8(x, *weight, quantize_activation, *blocks)


def quantized_matmul_int8_non_xla(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: _Maybe = None,
    quant_block_size: _Maybe = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> torch.Tensor:
    """Its result for tensors without values."""
    warn_of_no_values("quantized_matmul_int8", x)
    return x.new_empty(x.shape[0], w.shape[0])


define(
    "quantized_matmul_int8(Tensor x, Tensor w, Tensor scalar, Tensor? zero_point=None,"
    " Tensor? quant_block_size=None, bool quantize_activation=False, int? batch_block_size=None,"
    " int? out_block_size=None, int? in_block_size=None) -> Tensor",
    quantized_matmul_int8_xla,
    meta=quantized_matmul_int8_non_xla,
    device=quantized_matmul_int8_xla,
)

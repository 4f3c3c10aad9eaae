"""Quantized weights by torch_xla's names: `torch.ops.xla.quantized_matmul` and its layer."""

import contextlib

import torch
import torch.nn.functional as F

with contextlib.suppress(ImportError):
    # Defines torch.ops.quantized_decomposed, which makes the weights; newer torch may lack it.
    import torch.ao.quantization.fx._decomposed

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.errors import ArgumentError
from torch_xdist.kernels import quantized_forms
from torch_xdist.ops.table import lowers

_Maybe = torch.Tensor | None


def _need(where: str, holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise ArgumentError(f"quantized_matmul: {where} is expected to be {expected}, got {found}")


def _check_per_channel_quant_weight_dtype_shapes(
    input_dim: int, output_dim: int, w: torch.Tensor, w_scaler: torch.Tensor, zero_point: _Maybe
) -> None:
    """Raise ArgumentError unless a weight [output_dim, input_dim] and its scales fit."""
    _need("the weight's dtype", w.dtype == torch.int8, "torch.int8", w.dtype)
    _need("the weight", w.dim() == 2, "2D", f"a {w.dim()}D tensor")
    shape = [output_dim, input_dim]
    _need("the weight's shape", list(w.shape) == shape, f"{shape}", list(w.shape))
    for name, values in (("weight scaler", w_scaler), ("zero point", zero_point)):
        if values is not None:
            fits = list(values.shape) == shape[:1]
            _need(f"the {name}'s shape", fits, f"{shape[:1]}", list(values.shape))


def _check_blockwise_quant_weight_dtype_shapes(
    input_dim: int,
    output_dim: int,
    block_size: int,
    w: torch.Tensor,
    w_scaler: torch.Tensor,
    zero_point: _Maybe,
) -> None:
    """Raise ArgumentError unless a weight in blocks and its scales fit."""
    _need("the weight's dtype", w.dtype == torch.int8, "torch.int8", w.dtype)
    _need("the weight", w.dim() == 3, "3D", f"a {w.dim()}D tensor")
    whole = input_dim % block_size == 0
    _need("input_dim", whole, f"divisible by block_size {block_size}", input_dim)
    shape = [input_dim // block_size, block_size, output_dim]
    _need("the weight's shape", list(w.shape) == shape, f"{shape}", list(w.shape))
    of_blocks = [shape[0], output_dim]
    for name, values in (("weight scaler", w_scaler), ("zero point", zero_point)):
        if values is not None:
            fits = list(values.shape) == of_blocks
            _need(f"the {name}'s shape", fits, f"{of_blocks}", list(values.shape))


def _quantize_tensor(
    x: torch.Tensor, n_bits: int = 8, dim: int = -1
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x as integers of `n_bits` in int8, its scale): by the largest value along `dim`."""
    most = 2 ** (n_bits - 1) - 1
    scale = x.abs().amax(dim=dim, keepdim=True) / most
    # In bfloat16 the largest may come out as one more.
    return torch.round(x / scale).clamp(-most - 1, most).to(torch.int8), scale.to(x.dtype)


def quantized_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: _Maybe = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> torch.Tensor:
    """`x` times a quantized weight, in plain torch; the lowering says what the operands are."""
    if block_size != -1:
        if quantize_activation:
            raise ArgumentError(
                f"quantized_matmul: with block_size {block_size} the activation cannot be"
                " quantized as well; pass quantize_activation=False, or block_size=-1"
            )
        sizes = x.shape[-1], w.shape[-1], block_size
        _check_blockwise_quant_weight_dtype_shapes(*sizes, w, scaler, zero_point)
        return _by_blocks(x, w, scaler, zero_point, block_size)
    sizes_ = x.shape[-1], scaler.shape[0]
    _check_per_channel_quant_weight_dtype_shapes(*sizes_, w, scaler, zero_point)
    if not quantize_activation:
        out = F.linear(x, w.to(x.dtype)) * scaler
        return out if zero_point is None else out - x.sum(-1, keepdim=True) * zero_point
    exact, x_scale = _quantize_tensor(x)
    out = F.linear(exact.to(torch.int32), w.to(torch.int32)) * scaler
    if zero_point is not None:
        out = out - exact.sum(-1, keepdim=True, dtype=out.dtype) * zero_point
    return out * x_scale


def _by_blocks(
    x: torch.Tensor, w: torch.Tensor, scaler: torch.Tensor, zero_point: _Maybe, block_size: int
) -> torch.Tensor:
    blocks = x.reshape(*x.shape[:-1], -1, block_size)
    parts = torch.einsum("...sc,sco->...so", blocks, w.to(x.dtype))
    out = torch.einsum("...so,so->...o", parts, scaler)
    return out if zero_point is None else out - blocks.sum(-1) @ zero_point


define(
    "quantized_matmul(Tensor x, Tensor w, Tensor scale, Tensor? zero_point=None,"
    " int? block_size=-1, bool? int4_weight=False, bool? quantize_activation=False) -> Tensor",
    quantized_matmul,
)
lowers("xla.quantized_matmul.default")(quantized_forms.quantized_matmul)


def quantized_matmul_xla(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: _Maybe = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> torch.Tensor:
    """`torch.ops.xla.quantized_matmul`.

    Args:
        x: [..., i].
        w: int8 [o, i], or in blocks [i / block_size, block_size, o].
        scaler: [o], or [i / block_size, o]; multiplies the integers.
        zero_point: like `scaler`; `scaler * w - zero_point` is the weight.
        block_size: -1 for one scale per output.
        int4_weight: the integers are from -8 to 7, and 4 bits in the program.
        quantize_activation: multiply int8 by int8, with a scale per row of `x`.
    """
    return torch.ops.xla.quantized_matmul(
        x, w, scaler, zero_point, block_size, int4_weight, quantize_activation
    )


class XlaQuantizedLinear(torch.nn.Module):
    """A linear layer without bias whose weight is quantized; `load_quantized_weight` fills it."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = False,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.is_symmetric = is_symmetric
        self.block_size = block_size
        self.int4_weight = int4_weight
        self.quantize_activation = quantize_activation
        self.register_buffer("weight", torch.zeros(output_dim, input_dim, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.zeros(output_dim))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(output_dim))

    def load_quantized_weight(
        self, weight: torch.Tensor, weight_scaler: torch.Tensor, zero_point: _Maybe = None
    ) -> None:
        """Take integers and scales, in the shapes of `quantized_matmul_xla`."""
        sizes = self.input_dim, self.output_dim
        scales = weight_scaler, zero_point
        if self.block_size == -1:
            _check_per_channel_quant_weight_dtype_shapes(*sizes, weight, *scales)
        else:
            _check_blockwise_quant_weight_dtype_shapes(*sizes, self.block_size, weight, *scales)
        self.weight, self.weight_scaler, self.zero_point = weight, weight_scaler, zero_point

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return quantized_matmul_xla(
            x,
            self.weight,
            self.weight_scaler,
            self.zero_point,
            self.block_size,
            self.int4_weight,
            self.quantize_activation,
        )

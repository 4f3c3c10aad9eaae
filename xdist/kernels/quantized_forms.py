"""Products with weights of 8 or 4 bits, as `torch.ops.xla.quantized_matmul` defines them.

The weights stay integers in the program, so hardware that multiplies them as they are reads one
byte, or half of one, for each. JAX leaves a product of two types as it is for TPUs alone; XLA's CPU
compiler takes it too, so that a program on a laptop is the one of the TPU.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo

from torch_xdist.core.programs import jax_internals
from torch_xdist.ops.quantized import four_bits

# Dims as `lax.dot_general` takes them: (of x, of w), contracted and batch.
_Dims = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]

_product_p = Primitive("product_of_two_types")


@_product_p.def_abstract_eval
def _type(x: Any, w: Any, *, dims: _Dims, dtype: Any) -> Any:
    found = jax.eval_shape(partial(_by_jax, dims=dims, dtype=dtype), x, w)
    return jax.core.ShapedArray(found.shape, found.dtype)


def _by_jax(x: Any, w: Any, *, dims: _Dims, dtype: Any) -> jax.Array:
    return lax.dot_general(x, w, dims, preferred_element_type=dtype)


_lower_by_jax = mlir.lower_fun(_by_jax, multiple_results=False)


def _on_cpu(ctx: Any, x: Any, w: Any, *, dims: _Dims, dtype: Any) -> Any:
    of_x, of_w = (value.dtype for value in ctx.avals_in)
    # The same type is no matter of ours, and where an artifact will run is not known.
    if of_x == of_w or jax_internals.is_export(ctx):
        return _lower_by_jax(ctx, x, w, dims=dims, dtype=dtype)
    if jnp.int4 in (of_x, of_w):
        jax_internals.compile_without(ctx, "sub-byte-size-setter")
    (contracted_x, contracted_w), (batch_x, batch_w) = dims
    numbers = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=list(batch_x),
        rhs_batching_dimensions=list(batch_w),
        lhs_contracting_dimensions=list(contracted_x),
        rhs_contracting_dimensions=list(contracted_w),
    )
    type_ = jax_internals.type_in(ctx, ctx.avals_out[0])
    return stablehlo.DotGeneralOp(type_, x, w, numbers).results


mlir.register_lowering(_product_p, _lower_by_jax)
mlir.register_lowering(_product_p, _on_cpu, platform="cpu")


def _product(x: jax.Array, w: jax.Array, dims: _Dims) -> Any:
    exact = jnp.issubdtype(x.dtype, jnp.integer)
    return _product_p.bind(x, w, dims=dims, dtype=jnp.dtype(jnp.int32 if exact else x.dtype))


def rounded_to_int8(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(x as int8, its scale): each row by its own largest value."""
    scale = jnp.abs(x).max(axis=-1, keepdims=True) / 127
    # In bfloat16 the largest may come out as 128.
    return jnp.clip(jnp.round(x / scale), -128, 127).astype(jnp.int8), scale.astype(x.dtype)


def quantized_matmul(
    x: jax.Array,
    w: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array | None = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> jax.Array:
    """x [..., i] times a weight for o outputs: [..., o].

    Args:
        w: [o, i], or in blocks [i / block_size, block_size, o].
        scale: [o], or of each block [i / block_size, o]; multiplies the integers of `w`.
        zero_point: like `scale`; `scale * w - zero_point` is the weight.
    """
    if int4_weight:
        w = four_bits(w)
    if block_size != -1:
        return _by_blocks(x, w, scale, zero_point, block_size)
    x_scale = None
    if quantize_activation:
        x, x_scale = rounded_to_int8(x)
    last = (x.ndim - 1,)
    out = _product(x, w, ((last, (1,)), ((), ()))) * scale
    if zero_point is not None:
        out = out - x.sum(axis=-1, keepdims=True, dtype=out.dtype) * zero_point
    return out if x_scale is None else out * x_scale


def _by_blocks(
    x: jax.Array, w: jax.Array, scale: jax.Array, zero_point: jax.Array | None, block_size: int
) -> jax.Array:
    blocks = x.reshape(*x.shape[:-1], -1, block_size)
    block, within = blocks.ndim - 2, blocks.ndim - 1
    # [s, ..., o]: the block comes first.
    parts = _product(blocks, w, (((within,), (1,)), ((block,), (0,))))
    out = jnp.einsum("s...o,so->...o", parts, scale)
    if zero_point is not None:
        out = out - blocks.sum(axis=-1) @ zero_point
    return out

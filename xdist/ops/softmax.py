"""Softmax, its logarithm, their masked forms and gradients, along one dim.

Halves are computed in float32; the results have the operand's shape.
"""

from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import opmath
from torch_xdist.ops.table import lowers


def _shifted(self: jax.Array, dim: int) -> jax.Array:
    """`self` less its largest number along `dim`, so that exp does not overflow."""
    return self - jnp.max(self, axis=dim, keepdims=True) if self.size else self


@lowers("aten._softmax.default")
@opmath
def softmax(self: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    if self.ndim == 0:
        return jnp.exp(self - self)
    powers = jnp.exp(_shifted(self, dim))
    return powers / jnp.sum(powers, axis=dim, keepdims=True)


@lowers("aten._log_softmax.default")
@opmath
def log_softmax(self: jax.Array, dim: int, half_to_float: bool = False) -> jax.Array:
    if self.ndim == 0:
        return self - self
    shifted = _shifted(self, dim)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=dim, keepdims=True))


@lowers("aten._safe_softmax.default")
@opmath
def safe_softmax(self: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
    # A row of minus infinities, all masked out, gives zeros instead of nan.
    masked = jnp.all(self == -jnp.inf, axis=dim, keepdims=True) if self.ndim else self == -jnp.inf
    return jnp.where(masked, 0, softmax(self, dim))


@lowers("aten._softmax_backward_data.default")
@opmath
def softmax_backward(
    grad_output: jax.Array, output: jax.Array, dim: int, input_dtype: Any
) -> jax.Array:
    scaled = grad_output * output
    total = jnp.sum(scaled, axis=dim, keepdims=True) if output.ndim else scaled
    return scaled - output * total


@lowers("aten._log_softmax_backward_data.default")
@opmath
def log_softmax_backward(
    grad_output: jax.Array, output: jax.Array, dim: int, input_dtype: Any
) -> jax.Array:
    total = jnp.sum(grad_output, axis=dim, keepdims=True) if output.ndim else grad_output
    return grad_output - jnp.exp(output) * total


def _whole_mask(mask: jax.Array, shape: tuple[int, ...], mask_type: int | None) -> jax.Array:
    """The mask [of shape `shape`]; its types are: 0 [l, l], 1 [b, l], 2 of the whole shape."""
    if mask_type == 0 and mask.ndim == 2 and len(shape) == 4:
        mask = mask[None, None]
    elif mask_type == 1 and len(shape) == 4:
        mask = mask[:, None, None]
    return jnp.broadcast_to(mask.astype(bool), shape)


@lowers("aten._masked_softmax.default")
@opmath
def masked_softmax(
    self: jax.Array, mask: jax.Array, dim: int | None = None, mask_type: int | None = None
) -> jax.Array:
    # True in the mask takes an entry out; a row without entries gives zeros.
    out = _whole_mask(mask, self.shape, mask_type)
    return safe_softmax(jnp.where(out, -jnp.inf, self), -1 if dim is None else dim)


@lowers("aten._masked_softmax_backward.default")
@opmath
def masked_softmax_backward(
    grad_output: jax.Array, output: jax.Array, mask: jax.Array, dim: int | None = None
) -> jax.Array:
    grad = softmax_backward(grad_output, output, -1 if dim is None else dim, None)
    return jnp.where(mask.astype(bool), 0, grad)

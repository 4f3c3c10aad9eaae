"""Matrix products: `lax.dot_general` on the operands as they are, so that no transpose is made.

Half precision accumulates in float32 and is rounded once: by the caller, or on GPUs, where nothing
comes between, inside the product (`rounded`), whose kernels then write half as much. The precision
of float32 products is JAX's own setting (`jax.default_matmul_precision`), which no row overrides.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xdist.dtypes import to_jax
from torch_xdist.ops import exactness, naming
from torch_xdist.ops.operands import opmath, wide
from torch_xdist.ops.table import add_rows, lowers
from torch_xdist.ops.turned import over_rows

# Of smaller products XLA makes loops for GPUs, some of which would sum halves as halves.
_LEAST = 16
Scalar = Any  # a Python number, or a 0-d array where the value is an input of the program


def product(
    lhs: jax.Array,
    rhs: jax.Array,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    out_dtype: Any = None,
) -> jax.Array:
    """The products summed over `contract`: dims are batch, free of `lhs`, free of `rhs`."""
    dtype = out_dtype or wide(lhs.dtype)
    return lax.dot_general(lhs, rhs, (contract, batch), preferred_element_type=dtype)


def rounded(
    lhs: jax.Array,
    rhs: jax.Array,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> jax.Array:
    """`product` for the dtype of the operands, to which the caller rounds it as it is."""
    if lhs.dtype.name not in exactness.rounded_products() or lhs.dtype != rhs.dtype:
        return product(lhs, rhs, contract, batch)
    summed = math.prod(lhs.shape[dim] for dim in contract[0])
    batches = math.prod(lhs.shape[dim] for dim in batch[0])
    rows, columns = (x.size // max(summed * batches, 1) for x in (lhs, rhs))
    if min(summed, rows, columns) < _LEAST:
        return product(lhs, rhs, contract, batch)
    # What JAX is told of float32 says nothing of halves, of which there is one kind of product.
    return lax.dot_general(
        lhs, rhs, (contract, batch), lax.Precision.DEFAULT, preferred_element_type=lhs.dtype
    )


def scaled(x: jax.Array, factor: Scalar) -> jax.Array:
    """`factor * x` in x's dtype; a factor of 0 gives 0 even where x is nan, as in BLAS."""
    if isinstance(factor, int | float | complex):
        if factor == 0:
            return jnp.zeros_like(x)
        return x if factor == 1 else x * jnp.asarray(factor, x.dtype)
    factor = factor.astype(x.dtype)
    return jnp.where(factor == 0, jnp.zeros_like(x), x * factor)


def _plus(self: jax.Array, prod: jax.Array, beta: Scalar, alpha: Scalar) -> jax.Array:
    """`beta * self + alpha * prod` in the dtype of the product."""
    if prod.dtype == jnp.complex64 and not (_is_one(alpha) and _is_one(beta)):
        return _rounded_once([(beta, jnp.broadcast_to(self, prod.shape)), (alpha, prod)])
    prod = prod if _is_one(alpha) else prod * _like(alpha, prod)
    return scaled(jnp.broadcast_to(self, prod.shape).astype(prod.dtype), beta) + prod


def _rounded_once(terms: Sequence[tuple[Scalar, jax.Array]]) -> jax.Array:
    """The sum of factor * array over complex64 arrays, each part in double: products cancel."""
    real = imag = jnp.zeros((), jnp.float64)
    for factor, x in terms:
        factor = jnp.asarray(factor)
        f_real, f_imag, x_real, x_imag = (
            part.astype(jnp.float64) for part in (factor.real, factor.imag, x.real, x.imag)
        )
        # A factor of 0 gives 0 even where x is nan, as in BLAS.
        real = real + jnp.where(factor == 0, 0, f_real * x_real - f_imag * x_imag)
        imag = imag + jnp.where(factor == 0, 0, f_real * x_imag + f_imag * x_real)
    return lax.complex(real.astype(jnp.float32), imag.astype(jnp.float32))


def _is_one(factor: Scalar) -> bool:
    return isinstance(factor, int | float | complex) and factor == 1


def _like(factor: Scalar, x: jax.Array) -> jax.Array:
    return jnp.asarray(factor).astype(x.dtype)


def _mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return product(self, mat2, ((1,), (0,)))


def transposed_mv(self: jax.Array, vec: jax.Array) -> jax.Array:
    """The product of `self` [k, n], turned around, and a vector of k -> [n]."""
    return product(self, vec, ((0,), (0,)))


def _bmm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return product(self, mat2, ((2,), (1,)), ((0,), (0,)))


def _rounded_mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return rounded(self, mat2, ((1,), (0,)))


def _rounded_bmm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return rounded(self, mat2, ((2,), (1,)), ((0,), (0,)))


def _dot(self: jax.Array, tensor: jax.Array) -> jax.Array:
    return product(self, tensor, ((0,), (0,)))


add_rows(
    {
        "aten.mm.default": _rounded_mm,
        "aten.bmm.default": _rounded_bmm,
        "aten.mv.default": _mm,
        "aten.dot.default": _dot,
    }
)


@lowers("aten.mm.dtype")
def mm_dtype(self: jax.Array, mat2: jax.Array, out_dtype: torch.dtype) -> jax.Array:
    return product(self, mat2, ((1,), (0,)), out_dtype=to_jax(out_dtype))


@lowers("aten.bmm.dtype")
def bmm_dtype(self: jax.Array, mat2: jax.Array, out_dtype: torch.dtype) -> jax.Array:
    return product(self, mat2, ((2,), (1,)), ((0,), (0,)), to_jax(out_dtype))


@lowers("aten._int_mm.default")
def int_mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return product(self, mat2, ((1,), (0,)), out_dtype=jnp.int32)


@lowers("aten.vdot.default")
def vdot(self: jax.Array, other: jax.Array) -> jax.Array:
    return _dot(jnp.conj(self), other)


@lowers("aten.addmm.default")
def addmm(
    self: jax.Array, mat1: jax.Array, mat2: jax.Array, *, beta: Scalar = 1, alpha: Scalar = 1
) -> jax.Array:
    is_bias = self.ndim == 1 and _is_one(beta) and _is_one(alpha)
    return _plus(self, (_rounded_mm if is_bias else _mm)(mat1, mat2), beta, alpha)


@lowers("aten.addmm.dtype")
def addmm_dtype(
    self: jax.Array,
    mat1: jax.Array,
    mat2: jax.Array,
    out_dtype: torch.dtype,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
) -> jax.Array:
    return _plus(self, mm_dtype(mat1, mat2, out_dtype), beta, alpha)


@lowers("aten.addmv.default")
def addmv(
    self: jax.Array, mat: jax.Array, vec: jax.Array, *, beta: Scalar = 1, alpha: Scalar = 1
) -> jax.Array:
    return _plus(self, _mm(mat, vec), beta, alpha)


@lowers("aten.baddbmm.default")
def baddbmm(
    self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: Scalar = 1, alpha: Scalar = 1
) -> jax.Array:
    return _plus(self, _bmm(batch1, batch2), beta, alpha)


@lowers("aten.baddbmm.dtype")
def baddbmm_dtype(
    self: jax.Array,
    batch1: jax.Array,
    batch2: jax.Array,
    out_dtype: torch.dtype,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
) -> jax.Array:
    return _plus(self, bmm_dtype(batch1, batch2, out_dtype), beta, alpha)


@lowers("aten.addbmm.default")
def addbmm(
    self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: Scalar = 1, alpha: Scalar = 1
) -> jax.Array:
    # One product over both dims would need its operands transposed.
    return _plus(self, jnp.sum(_bmm(batch1, batch2), 0), beta, alpha)


@lowers("aten.addr.default")
@opmath
def addr(
    self: jax.Array, vec1: jax.Array, vec2: jax.Array, *, beta: Scalar = 1, alpha: Scalar = 1
) -> jax.Array:
    prod = vec1[:, None] * vec2[None, :]
    common = jnp.promote_types(self.dtype, prod.dtype)
    return _plus(self.astype(common), prod.astype(common), beta, alpha)


@lowers("aten._addmm_activation.default")
def addmm_activation(
    self: jax.Array,
    mat1: jax.Array,
    mat2: jax.Array,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    use_gelu: bool = False,
) -> jax.Array:
    out = addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    return jax.nn.gelu(out, approximate=False) if use_gelu else jax.nn.relu(out)


@lowers("aten.linear.default")
def linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """`input` [..., k] times `weight` [n, k] or [k]: [..., n] or [...].

    A bias is added in the dtype of the product: on GPUs that of halves, whose kernels add it before
    they round, and where XLA takes others it is rounded twice, as by torch.compile.
    """
    if naming.is_asked() and weight.ndim == 2:
        with naming.part("permute"):
            weight = weight.T
        with naming.part("mm" if bias is None else "addmm"):
            out = rounded(input, weight, ((input.ndim - 1,), (0,)))
            return out if bias is None else out + bias.astype(out.dtype)
    out = rounded(input, weight, ((input.ndim - 1,), (weight.ndim - 1,)))
    return out if bias is None else out + bias.astype(out.dtype)


@lowers("aten.matmul.default")
def matmul(self: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.matmul(self, other, preferred_element_type=wide(self.dtype))


@lowers("aten._trilinear.default")
def trilinear(
    i1: jax.Array,
    i2: jax.Array,
    i3: jax.Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> jax.Array:
    """The product of three arrays, each with new dims at its `expand`, summed over `sumdim`."""
    total = i1.ndim + len(expand1)
    operands: list[Any] = []
    for array, expand in ((i1, expand1), (i2, expand2), (i3, expand3)):
        operands += [array, [dim for dim in range(total) if dim not in expand]]
    keep = [dim for dim in range(total) if dim not in sumdim]
    return jnp.einsum(*operands, keep, preferred_element_type=wide(i1.dtype))


@lowers("aten.linear_backward.default", shaped=True)
def linear_backward(
    self: jax.Array, grad_output: jax.Array, weight: jax.Array, output_mask: Sequence[bool]
) -> list[jax.Array | None]:
    """Gradients for input [..., k], weight [n, k] or [k] and bias [n]; None where not asked for."""
    self, weight = jnp.conj(self), jnp.conj(weight)
    lead = tuple(range(self.ndim - 1))
    grad = grad_output if weight.ndim == 2 else grad_output[..., None]
    wanted = [
        lambda: rounded(grad, weight.reshape(-1, weight.shape[-1]), ((len(lead),), (0,))),
        lambda: _summed_over_rows(grad, self).reshape(weight.shape),
        lambda: jnp.sum(grad_output, lead, dtype=wide(self.dtype)),
    ]
    return [of().astype(self.dtype) if ask else None for of, ask in zip(wanted, output_mask)]


def _summed_over_rows(grad: jax.Array, x: jax.Array) -> jax.Array:
    """grad [..., o], x [..., i] -> [o, i]."""
    lead = tuple(range(x.ndim - 1))
    if x.dtype.name in ("float32", "float64") and grad.dtype == x.dtype:
        return over_rows(grad, x)
    return rounded(grad, x, (lead, lead))

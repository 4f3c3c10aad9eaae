"""LU factorization and what rests on it: solving, inverse, determinants; least squares.

torch's gradient formulas reuse the LU of a matrix or of its transpose; which, they decide by its
strides, in a way that differs between releases. So the rows ask torch once how it factors.
"""

import math
from functools import cache

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xdist.ops.linalg import eliminate, first_bad, mh, solve_triangular
from torch_xdist.ops.table import lowers


def _mt(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)


def _diagonal(x: jax.Array) -> jax.Array:
    return jnp.diagonal(x, axis1=-2, axis2=-1)


def _lu(a: jax.Array, pivot: bool = True) -> tuple[jax.Array, jax.Array]:
    """Packed L and U, and torch's pivots [..., k], which count from 1."""
    count = min(a.shape[-2:])
    if not pivot or not a.size:
        rows = jnp.arange(1, count + 1, dtype=jnp.int32)
        return (eliminate(a) if a.size else a), jnp.broadcast_to(rows, (*a.shape[:-2], count))
    lu, pivots, _ = lax.linalg.lu(a)
    if a.shape[-2] == a.shape[-1]:
        # Wherever a nan is, the last pivot is one; jaxlib's LAPACK may pass over it.
        has_nan = jnp.isnan(a).any((-2, -1))
        lu = lu.at[..., -1, -1].set(jnp.where(has_nan, jnp.nan, lu[..., -1, -1]))
    return lu, pivots + 1


@cache
def _factors_transpose(name: str, result: int) -> bool:
    """Whether this torch factors the transpose of a contiguous real matrix."""
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    operands = (a, a) if name == "_linalg_solve_ex" else (a,)
    lu: torch.Tensor = getattr(torch.ops.aten, name)(*operands)[result]
    return bool(lu[0, 0] == 2)  # the largest of the first row, not of the first column


def _lu_for_gradients(
    a: jax.Array, name: str, result: int, contiguous: tuple[bool, ...]
) -> tuple[jax.Array, jax.Array, bool]:
    """LU and pivots of a, or of its transpose where the flag says so."""
    real_rows = contiguous[0] and not jnp.iscomplexobj(a)
    flipped = real_rows and _factors_transpose(name, result)
    return (*_lu(_mt(a) if flipped else a), flipped)


def _singular(lu: jax.Array) -> jax.Array:
    return first_bad(_diagonal(lu) == 0)


def _permutation(pivots: jax.Array, size: int) -> jax.Array:
    """[..., size] of a[permutation] = l @ u."""
    if not pivots.size:
        rows = jnp.arange(size, dtype=jnp.int32)
        return jnp.broadcast_to(rows, (*pivots.shape[:-1], size))
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, size)


@lowers("aten.linalg_lu_factor_ex.default")
def lu_factor_ex(
    A: jax.Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    lu, pivots = _lu(A, pivot)
    return lu, pivots, _singular(lu)


@lowers("aten.lu_unpack.default")
def lu_unpack(
    LU_data: jax.Array, LU_pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """P, L, U of a = P @ L @ U; those not asked for are of shape (0,)."""
    (m, n), dtype = LU_data.shape[-2:], LU_data.dtype
    k = min(m, n)
    p = lower = upper = jnp.zeros(0, dtype)
    if unpack_data:
        lower = jnp.tril(LU_data[..., :k], -1) + jnp.eye(m, k, dtype=dtype)
        upper = jnp.triu(LU_data[..., :k, :])
    if unpack_pivots:
        places = _permutation(LU_pivots, m)
        p = (jnp.arange(m)[:, None] == places[..., None, :]).astype(dtype)
    return p, lower, upper


@lowers("aten.linalg_lu.default")
def linalg_lu(A: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, jax.Array, jax.Array]:
    lu, pivots = _lu(A, pivot)
    return lu_unpack(lu, pivots, True, pivot)


@lowers("aten.linalg_lu_solve.default")
def lu_solve(
    LU: jax.Array, pivots: jax.Array, B: jax.Array, *, left: bool = True, adjoint: bool = False
) -> jax.Array:
    """x of a @ x = B (x @ a = B unless `left`), a or its adjoint given by its factors."""
    if not left:
        return mh(lu_solve(LU, pivots, mh(B), left=True, adjoint=not adjoint))
    batch = jnp.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    x = jnp.broadcast_to(B, (*batch, *B.shape[-2:]))
    if not x.size:
        return x
    order = jnp.broadcast_to(_permutation(pivots, LU.shape[-1]), (*batch, LU.shape[-1]))
    if not adjoint:
        x = jnp.take_along_axis(x, order[..., None], -2)
        x = solve_triangular(LU, x, lower=True, unit=True)
        return solve_triangular(LU, x, lower=False)
    x = solve_triangular(LU, x, lower=False, adjoint=True)
    x = solve_triangular(LU, x, lower=True, adjoint=True, unit=True)
    return jnp.take_along_axis(x, jnp.argsort(order, -1)[..., None], -2)


@lowers("aten._linalg_solve_ex.default", strided=True)
def solve_ex(
    A: jax.Array,
    B: jax.Array,
    *,
    left: bool = True,
    check_errors: bool = False,
    contiguous: tuple[bool, ...] = (True, True),
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    # torch takes B for a batch of vectors where it has A's shape without the last dim.
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and A.shape[:-1] == B.shape)
    lu, pivots, flipped = _lu_for_gradients(A, "_linalg_solve_ex", 1, contiguous)
    x = lu_solve(lu, pivots, B[..., None] if vector else B, left=left, adjoint=flipped)
    return (x[..., 0] if vector else x), lu, pivots, _singular(lu)


@lowers("aten.linalg_inv_ex.default")
def inv_ex(A: jax.Array, *, check_errors: bool = False) -> tuple[jax.Array, jax.Array]:
    x, _, _, info = solve_ex(A, jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape))
    return x, info


def _swaps(pivots: jax.Array) -> jax.Array:
    """[...]: the sign of the permutation, -1 or 1."""
    moved = pivots != jnp.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return 1 - 2 * (jnp.sum(moved, -1) % 2)


@lowers("aten._linalg_det.default", strided=True)
def det(
    A: jax.Array, *, contiguous: tuple[bool, ...] = (True,)
) -> tuple[jax.Array, jax.Array, jax.Array]:
    lu, pivots, _ = _lu_for_gradients(A, "_linalg_det", 1, contiguous)
    return jnp.prod(_diagonal(lu), -1) * _swaps(pivots).astype(A.dtype), lu, pivots


@lowers("aten._linalg_slogdet.default", strided=True)
def slogdet(
    A: jax.Array, *, contiguous: tuple[bool, ...] = (True,)
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    lu, pivots, _ = _lu_for_gradients(A, "_linalg_slogdet", 2, contiguous)
    diagonal = _diagonal(lu)
    sign = jnp.prod(jnp.sign(diagonal), -1) * _swaps(pivots).astype(A.dtype)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), -1), lu, pivots


@lowers("aten.linalg_solve_triangular.default")
def linalg_solve_triangular(
    self: jax.Array, B: jax.Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    return solve_triangular(self, B, lower=not upper, left=left, unit=unitriangular)


@lowers("aten.triangular_solve.default")
def triangular_solve(
    self: jax.Array,
    A: jax.Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[jax.Array, jax.Array]:
    batch = jnp.broadcast_shapes(A.shape[:-2], self.shape[:-2])
    a = _mt(A) if transpose else A
    x = solve_triangular(a, self, lower=upper == transpose, unit=unitriangular)
    return x, jnp.broadcast_to(A, (*batch, *A.shape[-2:]))


# The largest 1-norms for which degree 18 is exact to rounding (Bader, Blanes and Casas 2019).
_EXP_NORMS = {4: 3.01, 8: 1.09}
_EXP_BLOCK = 3


@lowers("aten.linalg_matrix_exp.default")
def matrix_exp(self: jax.Array) -> jax.Array:
    """A Taylor polynomial of degree 18 of a / 2^s, squared s times; s is each matrix's own."""
    if not self.size:
        return self
    limit = _EXP_NORMS[self.real.dtype.itemsize]
    norms = jnp.max(jnp.sum(jnp.abs(self), -2), -1)
    halvings = jnp.ceil(jnp.log2(jnp.maximum(norms / limit, 1))).astype(jnp.int32)
    halvings = jnp.where(jnp.isfinite(norms), halvings, 0)[..., None, None]
    small = self * jnp.exp2(-halvings.astype(self.real.dtype)).astype(self.dtype)

    def square(step: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(step < halvings, x @ x, x)

    return lax.fori_loop(0, jnp.max(halvings), square, _exp_polynomial(small))


def _exp_polynomial(a: jax.Array) -> jax.Array:
    """sum of a^k / k! for k <= 18, by blocks of three powers (Paterson and Stockmeyer 1973)."""
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    powers = (eye, a, a @ a)
    cube = powers[2] @ a
    out = eye / math.factorial(18)
    for start in range(15, -1, -_EXP_BLOCK):
        terms = (p / math.factorial(start + k) for k, p in enumerate(powers))
        out = out @ cube + sum(terms)
    return out


@lowers("aten.linalg_pinv.atol_rtol_tensor")
def pinv(
    self: jax.Array,
    *,
    atol: jax.Array | None = None,
    rtol: jax.Array | None = None,
    hermitian: bool = False,
) -> jax.Array:
    """[..., n, m]; singular values up to max(atol, rtol * the largest) count as 0."""
    if not self.size:
        return _mt(self)
    if hermitian:
        # eigh symmetrizes by reading the lower triangle, as torch does.
        v, values = lax.linalg.eigh(self, symmetrize_input=False)
        u, vh, size = v, mh(v), jnp.abs(values)
    else:
        u, values, vh = jnp.linalg.svd(self, full_matrices=False)
        size = values
    limit = _cutoff(size, max(self.shape[-2:]), atol, rtol)
    inverse = jnp.where(size > limit, 1 / jnp.where(values == 0, 1, values), 0)
    rough = (mh(vh) * inverse[..., None, :].astype(self.dtype)) @ mh(u)
    return _polished(rough, _of_lower_triangle(self) if hermitian else self)


def _of_lower_triangle(a: jax.Array) -> jax.Array:
    """The Hermitian matrix of which only the lower triangle is given."""
    lower = jnp.tril(a, -1)
    diagonal = jnp.where(jnp.eye(a.shape[-1], dtype=bool), a.real, 0)
    return lower + diagonal.astype(a.dtype) + mh(lower)


def _polished(x: jax.Array, a: jax.Array) -> jax.Array:
    """A pseudoinverse x of a after one step of Newton's, which takes the factors' rounding out.

    Source: Schulz 1933; Ben-Israel 1966. The step keeps the rank of x.
    """
    m, n = a.shape[-2:]
    if m <= n:
        return x + x @ (jnp.eye(m, dtype=a.dtype) - a @ x)
    return x + (jnp.eye(n, dtype=a.dtype) - x @ a) @ x


def _cutoff(
    size: jax.Array, longest: int, atol: jax.Array | None, rtol: jax.Array | None
) -> jax.Array:
    floor = jnp.zeros((), size.dtype) if atol is None else atol.astype(size.dtype)
    if rtol is None:
        rtol = jnp.where(floor > 0, 0, jnp.finfo(size.dtype).eps * longest)
    return jnp.maximum(
        floor[..., None], rtol.astype(size.dtype)[..., None] * size.max(-1, keepdims=True)
    )


@lowers("aten.linalg_lstsq.default", shaped=True)
def lstsq(
    self: jax.Array, b: jax.Array, rcond: float | None = None, *, driver: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Solution, residuals, rank and singular values; drivers differ in which they hand out."""
    driver = driver or "gelsy"
    vector = b.ndim == 1 or (self.ndim - 1 == b.ndim and self.shape[:-1] == b.shape)
    rhs = b[..., None] if vector else b
    m, n = self.shape[-2:]
    u, s, vh = jnp.linalg.svd(self, full_matrices=False)
    tol = jnp.finfo(s.dtype).eps * max(m, n) if rcond is None else rcond
    kept = s > tol * s.max(-1, keepdims=True, initial=0)
    inverse = jnp.where(kept, 1 / jnp.where(s == 0, 1, s), 0).astype(self.dtype)

    def solve(right: jax.Array) -> jax.Array:
        return mh(vh) @ (inverse[..., None] * (mh(u) @ right))

    x = solve(rhs)
    # Solving once more for what is left takes the rounding of the factors out.
    x = x + solve(rhs - self @ x)
    rank = jnp.sum(kept, -1)
    residuals = jnp.zeros(0, s.dtype)
    if m > n and driver != "gelsy":
        residuals = jnp.sum(jnp.abs(self @ x - rhs) ** 2, -2)
    return (
        x[..., 0] if vector else x,
        residuals,
        jnp.zeros(0, jnp.int64) if driver == "gels" else rank,
        s if driver in ("gelsd", "gelss") else jnp.zeros(0, s.dtype),
    )

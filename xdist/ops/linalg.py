"""Factorizations of the matrices [..., m, n]: Cholesky, QR, singular values, eigenvalues.

Where torch names a triangle, only that triangle is read. A failure shows in `info` and as nan,
since nothing can be raised from within a program. Gradients are torch's formulas, in other rows.
"""

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops.positions import counted
from torch_xdist.ops.table import lowers


def mh(x: jax.Array) -> jax.Array:
    """The conjugate transpose."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def solve_triangular(
    a: jax.Array,
    b: jax.Array,
    *,
    lower: bool,
    left: bool = True,
    adjoint: bool = False,
    unit: bool = False,
) -> jax.Array:
    """x of a @ x = b (x @ a = b unless `left`), batch dims broadcast, a's adjoint on request."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    if not b.size:
        return b
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=lower,
        transpose_a=adjoint,
        conjugate_a=adjoint,
        unit_diagonal=unit,
    )


def eliminate(a: jax.Array) -> jax.Array:
    """L (unit diagonal, below) and U of [..., m, n] in one array, without pivoting."""
    rows = counted(a.shape[-2])[:, None]
    cols = counted(a.shape[-1])[None, :]

    def step(k: jax.Array, x: jax.Array) -> jax.Array:
        row = lax.dynamic_slice_in_dim(x, k, 1, axis=-2)
        col = lax.dynamic_slice_in_dim(x, k, 1, axis=-1)
        factor = col / lax.dynamic_slice_in_dim(row, k, 1, axis=-1)
        x = jnp.where((rows > k) & (cols > k), x - factor * row, x)
        return jnp.where((rows > k) & (cols == k), factor, x)

    return lax.fori_loop(0, min(a.shape[-2:]), step, a)


def first_bad(bad: jax.Array) -> jax.Array:
    """[..., n] -> [...]: 1 + the place of the first True, 0 where there is none; int32."""
    if not bad.shape[-1]:
        return jnp.zeros(bad.shape[:-1], jnp.int32)
    return jnp.where(bad.any(-1), jnp.argmax(bad, -1) + 1, 0).astype(jnp.int32)


def _lower_cholesky(self: jax.Array, upper: bool) -> jax.Array:
    """L of L @ L^H, from the named triangle of `self`."""
    if not self.size:
        return self
    return lax.linalg.cholesky(mh(self) if upper else self, symmetrize_input=False)


@lowers("aten.cholesky.default")
def cholesky(self: jax.Array, upper: bool = False) -> jax.Array:
    factor = _lower_cholesky(self, upper)
    return mh(factor) if upper else factor


@lowers("aten.linalg_cholesky_ex.default")
def cholesky_ex(
    self: jax.Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The factor, all nan where `info` [...], the order of the first bad minor, is not 0."""
    factor = cholesky(self, upper)
    if not self.size:
        return factor, jnp.zeros(self.shape[:-2], jnp.int32)
    failed = jnp.isnan(jnp.diagonal(factor, axis1=-2, axis2=-1).real).any(-1)

    def orders(a: jax.Array) -> jax.Array:
        lower = jnp.tril(mh(a) if upper else a)
        whole = lower + mh(jnp.tril(lower, -1))
        pivots = jnp.diagonal(eliminate(whole), axis1=-2, axis2=-1).real
        return first_bad(~(pivots > 0))

    found = lax.cond(failed.any(), orders, lambda a: jnp.zeros(a.shape[:-2], jnp.int32), self)
    # Rounding may let the elimination pass where Cholesky did not: then blame the last.
    found = jnp.where(found == 0, self.shape[-1], found)
    return factor, jnp.where(failed, found, 0).astype(jnp.int32)


@lowers("aten.cholesky_solve.default")
def cholesky_solve(self: jax.Array, input2: jax.Array, upper: bool = False) -> jax.Array:
    """x of a @ x = self, where a = input2 @ input2^H (input2^H @ input2 with `upper`)."""
    half = solve_triangular(input2, self, lower=not upper, adjoint=upper)
    return solve_triangular(input2, half, lower=not upper, adjoint=not upper)


@lowers("aten.cholesky_inverse.default")
def cholesky_inverse(self: jax.Array, upper: bool = False) -> jax.Array:
    return cholesky_solve(jnp.eye(self.shape[-1], dtype=self.dtype), self, upper)


@lowers("aten.linalg_qr.default")
def qr(A: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    if mode == "r":
        return jnp.zeros(0, A.dtype), jnp.linalg.qr(A, mode="r")
    q, r = lax.linalg.qr(A, full_matrices=mode == "complete")
    return q, r


@lowers("aten.geqrf.default", shaped=True)
def geqrf(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    # The raw mode is numpy's, which hands out the transpose.
    a, tau = jnp.linalg.qr(self, mode="raw")
    return jnp.swapaxes(a, -1, -2), tau


@lowers("aten.linalg_householder_product.default")
def householder_product(input: jax.Array, tau: jax.Array) -> jax.Array:
    """[..., m, n] reflectors and [..., k] factors to n columns of Q."""
    if not input.size:
        return input
    return lax.linalg.householder_product(input, tau)


@lowers("aten.ormqr.default")
def ormqr(
    self: jax.Array,
    input2: jax.Array,
    input3: jax.Array,
    left: bool = True,
    transpose: bool = False,
) -> jax.Array:
    """`input3` times the whole Q of the reflectors `self` [..., m, k], factors `input2`."""
    if not input3.size:
        return input3
    m, k = self.shape[-2], input2.shape[-1]
    wide = jnp.pad(self[..., :k], [(0, 0)] * (self.ndim - 1) + [(0, m - k)])
    q = lax.linalg.householder_product(wide, input2)
    q = mh(q) if transpose else q
    return q @ input3 if left else input3 @ q


@lowers("aten._linalg_svd.default")
def svd(
    A: jax.Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    if compute_uv:
        u, s, vh = jnp.linalg.svd(A, full_matrices=full_matrices)
        return u, s, vh
    empty = jnp.zeros(0, A.dtype)
    return empty, jnp.linalg.svd(A, compute_uv=False), empty


@lowers("aten._linalg_eigh.default")
def eigh(A: jax.Array, UPLO: str = "L", compute_v: bool = True) -> tuple[jax.Array, jax.Array]:
    if not A.size:
        values = jnp.zeros(A.shape[:-1], A.real.dtype)
        return values, A if compute_v else jnp.zeros(0, A.dtype)
    vectors, values = lax.linalg.eigh(A, lower=UPLO.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros(0, A.dtype)


def _complex(x: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(x):
        return x
    return x.astype(jnp.complex128 if x.dtype == jnp.float64 else jnp.complex64)


@lowers("aten.linalg_eig.default")
def eig(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    if not self.size:
        return _complex(jnp.zeros(self.shape[:-1], self.dtype)), _complex(self)
    values, vectors = jnp.linalg.eig(self)
    return values, vectors


@lowers("aten.linalg_eigvals.default", "aten._linalg_eigvals.default")
def eigvals(self: jax.Array) -> jax.Array:
    if not self.size:
        return _complex(jnp.zeros(self.shape[:-1], self.dtype))
    return jnp.linalg.eigvals(self)

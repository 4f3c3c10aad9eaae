"""Fourier transforms. `normalization`: 0 none, 1 divides by sqrt(n), 2 by n; n counts all of `dim`.

JAX divides inverse transforms by n on its own, and where that is not wanted multiplies again,
which rounds twice; so inverse transforms are the conjugates of forward ones.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xdist.ops.table import lowers


def _normalized(x: jax.Array, normalization: int, n: int) -> jax.Array:
    if normalization == 0 or n == 0:
        return x
    return x / (math.sqrt(n) if normalization == 1 else n)


def _transform(x: jax.Array, dim: Sequence[int], forward: bool) -> jax.Array:
    """The unscaled complex transform, three dims at a time, which is what XLA takes."""
    x = x if forward else jnp.conj(x)
    for i in range(0, len(dim), 3):
        x = jnp.fft.fftn(x, axes=tuple(dim[i : i + 3]))
    return x if forward else jnp.conj(x)


@lowers("aten._fft_c2c.default")
def fft_c2c(self: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    if not self.size:
        return self
    n = math.prod(self.shape[d] for d in dim)
    return _normalized(_transform(self, dim, forward), normalization, n)


@lowers("aten._fft_r2c.default")
def fft_r2c(self: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    """Real to complex; `onesided` keeps n // 2 + 1 frequencies of the last of `dim`."""
    n = math.prod(self.shape[d] for d in dim)
    if not onesided:
        wide = jnp.complex128 if self.dtype == jnp.float64 else jnp.complex64
        return _normalized(_transform(self.astype(wide), dim, True), normalization, n)
    half = jnp.fft.rfft(self, axis=dim[-1])
    return _normalized(_transform(half, dim[:-1], True), normalization, n)


@lowers("aten._fft_c2r.default")
def fft_c2r(
    self: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int
) -> jax.Array:
    """Half of a hermitian spectrum to reals; the last of `dim` grows to `last_dim_size`."""
    n = math.prod(self.shape[d] for d in dim[:-1]) * last_dim_size
    full = _transform(self, dim[:-1], False)
    if normalization == 0:
        return _to_reals(full, last_dim_size, dim[-1])
    out = jnp.fft.irfft(full, last_dim_size, axis=dim[-1])
    # It comes divided by its last dim.
    scale = last_dim_size / (math.sqrt(n) if normalization == 1 else n)
    return out if scale == 1 else out * jnp.asarray(scale, out.dtype)


def _to_reals(half: jax.Array, size: int, dim: int) -> jax.Array:
    """The unscaled transform of half of a hermitian spectrum along one dim."""
    # The other half adds the conjugates of all but the first and, of an even size, the last.
    twice = jnp.full(size // 2 + 1, 2, half.real.dtype).at[0].set(1)
    if size % 2 == 0:
        twice = twice.at[-1].set(1)
    twice = jnp.expand_dims(twice, [d for d in range(half.ndim) if d != dim % half.ndim])
    return jnp.fft.fft(jnp.conj(half * twice), size, axis=dim).real

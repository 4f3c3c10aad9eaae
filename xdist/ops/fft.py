"""Fourier transforms. `normalization`: 0 none, 1 divides by sqrt(n), 2 by n; n counts all of `dim`.

JAX divides inverse transforms by n on its own; `norm="forward"` keeps it from doing so.
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
    for i in range(0, len(dim), 3):
        axes = tuple(dim[i : i + 3])
        if forward:
            x = jnp.fft.fftn(x, axes=axes)
        else:
            x = jnp.fft.ifftn(x, axes=axes, norm="forward")
    return x


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
    out = jnp.fft.irfft(full, last_dim_size, axis=dim[-1], norm="forward")
    return _normalized(out, normalization, n)

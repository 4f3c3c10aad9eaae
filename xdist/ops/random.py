"""Random lowerings: draws of a distribution, in the shape and dtype of an operand or as given.

`key` is a JAX key that the caller never uses twice. The values differ from those of torch's own
generators; the distributions are the same.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xdist.dtypes import to_jax
from torch_xdist.ops import forms, keys
from torch_xdist.ops.operands import Number, convert, is_float, scalar
from torch_xdist.ops.table import lowers

Key = jax.Array
Size = Sequence[int]
# A draw in several dims of up to so many numbers is made in one dim, which gives the same numbers,
# and on CPUs dims shorter than this are one with those before them: LLVM unrolls short loops in
# loops, and takes up to a second for it.
_MOST_FLAT = 4096
_SHORT = 128


def _drawn(draw: Callable[..., jax.Array], key: Key, shape: Size, *given: Any) -> jax.Array:
    """`draw(key, shape, *given)`."""
    short = _SHORT if forms.chosen().is_host else 0
    kept, inner = list(shape), 1
    while kept and (inner < short or math.prod(shape) <= _MOST_FLAT):
        inner *= kept.pop()
    if len(kept) + 1 >= len(shape):
        return draw(key, tuple(shape), *given)
    return draw(key, (*kept, inner), *given).reshape(shape)


def _real_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype to draw real numbers in: the operand's, or that of a complex number's parts."""
    return np.zeros(0, dtype).real.dtype if dtype.kind == "c" else dtype


def _default(dtype: torch.dtype | None) -> np.dtype:
    return to_jax(torch.get_default_dtype() if dtype is None else dtype)


def unit(key: Key, shape: Size, dtype: np.dtype) -> jax.Array:
    """Uniform in [0, 1); complex: both parts."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        both = _drawn(jax.random.uniform, key, (2, *shape), _real_dtype(dtype))
        return jax.lax.complex(both[0], both[1])
    return _drawn(jax.random.uniform, key, shape, dtype)


def gaussian(key: Key, shape: Size, dtype: np.dtype) -> jax.Array:
    """Normal with mean 0 and variance 1; complex: of the two parts together."""
    # Halves are rounded from float32: JAX's own have short tails.
    half = dtype in (jnp.float16, jnp.bfloat16)
    return _drawn(jax.random.normal, key, shape, jnp.float32 if half else dtype).astype(dtype)


def _open_unit(key: Key, self: jax.Array) -> jax.Array:
    """Uniform in (0, 1), in float32 for halves, so that its logarithm is finite."""
    wide = np.dtype(np.float64 if self.dtype == jnp.float64 else np.float32)
    drawn = _drawn(jax.random.uniform, key, self.shape, wide)
    return jnp.maximum(drawn, float(jnp.finfo(wide).tiny))


@lowers("aten.uniform.default", random=True)
def uniform(
    key: Key, self: jax.Array, from_: float = 0.0, to: float = 1.0, **named: Any
) -> jax.Array:
    low = named.get("from", from_)
    corner = low * (1 + 1j) if self.dtype.kind == "c" else low
    return unit(key, self.shape, self.dtype) * (to - low) + corner


@lowers("aten.normal_functional.default", random=True)
def normal(key: Key, self: jax.Array, mean: float = 0.0, std: float = 1.0, **_: Any) -> jax.Array:
    return gaussian(key, self.shape, self.dtype) * std + mean


@lowers("aten.normal.Tensor_Tensor", random=True)
def normal_of_arrays(key: Key, mean: jax.Array, std: jax.Array, **_: Any) -> jax.Array:
    shape = jnp.broadcast_shapes(mean.shape, std.shape)
    return gaussian(key, shape, jnp.result_type(mean, std)) * std + mean


@lowers("aten.normal.Tensor_float", random=True)
def normal_of_means(key: Key, mean: jax.Array, std: float = 1.0, **_: Any) -> jax.Array:
    return gaussian(key, mean.shape, mean.dtype) * std + mean


@lowers("aten.normal.float_Tensor", random=True)
def normal_of_spreads(key: Key, mean: float, std: jax.Array, **_: Any) -> jax.Array:
    return gaussian(key, std.shape, std.dtype) * std + mean


@lowers("aten.normal.float_float", random=True)
def normal_of_numbers(
    key: Key, mean: float, std: float, size: Size, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    return gaussian(key, size, _default(dtype)) * std + mean


@lowers("aten.log_normal.default", random=True)
def log_normal(
    key: Key, self: jax.Array, mean: float = 1.0, std: float = 2.0, **_: Any
) -> jax.Array:
    return jnp.exp(normal(key, self, mean, std))


@lowers("aten.exponential.default", random=True)
def exponential(key: Key, self: jax.Array, lambd: float = 1.0, **_: Any) -> jax.Array:
    return convert(-jnp.log(_open_unit(key, self)) / lambd, self.dtype)


@lowers("aten.cauchy.default", random=True)
def cauchy(
    key: Key, self: jax.Array, median: float = 0.0, sigma: float = 1.0, **_: Any
) -> jax.Array:
    angle = np.pi * (_open_unit(key, self) - 0.5)
    return convert(median + sigma * jnp.tan(angle), self.dtype)


@lowers("aten.geometric.default", random=True)
def geometric(key: Key, self: jax.Array, p: float, **_: Any) -> jax.Array:
    """The number of the first success, counted from one."""
    if p == 1:
        return jnp.ones_like(self)
    failures = jnp.log(_open_unit(key, self)) / np.log1p(-p)
    return convert(jnp.maximum(jnp.ceil(failures), 1), self.dtype)


def _chances(key: Key, p: jax.Array, shape: Size) -> jax.Array:
    """True with probability p, for each entry: bool [shape]."""
    wide = p if p.dtype == jnp.float64 else p.astype(jnp.float32)
    return _drawn(jax.random.uniform, key, shape, wide.dtype) < wide


@lowers("aten.bernoulli.default", random=True)
def bernoulli(key: Key, self: jax.Array, **_: Any) -> jax.Array:
    return _chances(key, self, self.shape).astype(self.dtype)


@lowers("aten.bernoulli.p", random=True)
def bernoulli_p(key: Key, self: jax.Array, p: float = 0.5, **_: Any) -> jax.Array:
    return _chances(key, jnp.float32(p), self.shape).astype(self.dtype)


@lowers("aten.bernoulli.Tensor", random=True)
def bernoulli_of_array(key: Key, self: jax.Array, p: jax.Array, **_: Any) -> jax.Array:
    return _chances(key, p, self.shape).astype(self.dtype)


def whole(key: Key, shape: Size, low: int, high: int, dtype: np.dtype) -> jax.Array:
    """Uniform whole numbers in [low, high), in any dtype that holds them."""
    # As torch: the remainder of a draw; but of 64 bits always.
    bits = _drawn(jax.random.bits, key, shape, jnp.uint64)
    drawn = jax.lax.rem(bits, jnp.full_like(bits, high - low)).astype(jnp.int64)
    return convert(drawn + low, dtype)


def _largest_whole(dtype: np.dtype) -> int:
    """Up to which whole number a dtype holds all of them."""
    if dtype == jnp.bool_:
        return 1
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).max)
    return int(2 ** (jnp.finfo(dtype).nmant + 1))


@lowers("aten.random.default", random=True)
def random(key: Key, self: jax.Array, **_: Any) -> jax.Array:
    high = min(_largest_whole(self.dtype), 2**63 - 2) + 1
    return whole(key, self.shape, 0, high, self.dtype)


@lowers("aten.random.to", random=True)
def random_to(key: Key, self: jax.Array, to: int, **_: Any) -> jax.Array:
    return whole(key, self.shape, 0, to, self.dtype)


@lowers("aten.random.from", random=True)
def random_from(
    key: Key, self: jax.Array, from_: int = 0, to: int | None = None, **named: Any
) -> jax.Array:
    low = named.get("from", from_)
    high = _largest_whole(self.dtype) + 1 if to is None else to
    return whole(key, self.shape, low, min(high, 2**63 - 1), self.dtype)


@lowers("aten.randint.default", "aten.randint.generator", random=True)
def randint(
    key: Key, high: int, size: Size, *, dtype: torch.dtype | None = torch.int64, **_: Any
) -> jax.Array:
    return whole(key, size, 0, high, to_jax(dtype or torch.int64))


@lowers("aten.randint.low", "aten.randint.low_generator", random=True)
def randint_from(
    key: Key, low: int, high: int, size: Size, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    return whole(key, size, low, high, to_jax(dtype or torch.int64))


def _like(self: jax.Array, dtype: torch.dtype | None) -> np.dtype:
    return self.dtype if dtype is None else to_jax(dtype)


@lowers("aten.randint_like.default", "aten.randint_like.generator", random=True)
def randint_like(
    key: Key, self: jax.Array, high: int, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    return whole(key, self.shape, 0, high, _like(self, dtype))


@lowers("aten.randint_like.Tensor", "aten.randint_like.Tensor_generator", random=True)
def randint_like_array(
    key: Key, self: jax.Array, high: jax.Array, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    drawn = jax.random.randint(key, self.shape, 0, high.astype(jnp.int64), jnp.int64)
    return convert(drawn, _like(self, dtype))


@lowers("aten.randint_like.low_dtype", "aten.randint_like.low_generator_dtype", random=True)
def randint_like_from(
    key: Key, self: jax.Array, low: int, high: int, *, dtype: torch.dtype | None = None, **_: Any
) -> jax.Array:
    return whole(key, self.shape, low, high, _like(self, dtype))


Draw = Callable[[Key, Size, np.dtype], jax.Array]


def _register(name: str, draw: Draw) -> None:
    """`rand` and `randn` in their four forms."""

    @lowers(f"aten.{name}.default", f"aten.{name}.generator", random=True)
    def of_size(key: Key, size: Size, *, dtype: torch.dtype | None = None, **_: Any) -> jax.Array:
        return draw(key, size, _default(dtype))

    @lowers(f"aten.{name}_like.default", f"aten.{name}_like.generator", random=True)
    def like(key: Key, self: jax.Array, *, dtype: torch.dtype | None = None, **_: Any) -> jax.Array:
        return draw(key, self.shape, _like(self, dtype))


_register("rand", unit)
_register("randn", gaussian)


@lowers("aten.randperm.default", "aten.randperm.generator", random=True)
def randperm(key: Key, n: int, *, dtype: torch.dtype | None = torch.int64, **_: Any) -> jax.Array:
    """0 to n - 1 in random order, by one sort of numbers whose last bits are the places.

    `jax.random.permutation` sorts pairs, and from 1,626 places on twice: 10,000 take 2.9 ms on a
    CPU, and 0.5 so. Where all other bits of two are equal, the lower place comes first.
    """
    bits = max(n - 1, 0).bit_length()
    drawn = jax.random.bits(key, (n,), jnp.uint64) << bits
    mixed = lax.sort(drawn | jnp.arange(n, dtype=jnp.uint64), is_stable=False)
    return convert(mixed & ((1 << bits) - 1), to_jax(dtype or torch.int64))


def _with_replacement(key: Key, weights: jax.Array, count: int) -> jax.Array:
    """Positions [.., count] where uniform draws fall in the running sum of the weights."""
    running = jnp.cumsum(weights, axis=-1)
    drawn = jax.random.uniform(key, (*weights.shape[:-1], count), running.dtype)
    # A draw lies below the total, and never in a class of weight zero.
    drawn = drawn * running[..., -1:]
    drawn = jnp.minimum(drawn, jnp.nextafter(running[..., -1:], jnp.zeros_like(drawn)))
    search = jnp.vectorize(
        lambda sums, values: jnp.searchsorted(sums, values, side="right"),
        signature="(n),(k)->(k)",
    )
    return search(running, drawn)


@lowers("aten.multinomial.default", random=True)
def multinomial(
    key: Key, self: jax.Array, num_samples: int, replacement: bool = False, **_: Any
) -> jax.Array:
    """Positions drawn with the weights `self` [.., n]: int64 [.., num_samples]."""
    weights = self if self.dtype == jnp.float64 else self.astype(jnp.float32)
    if replacement:
        return _with_replacement(key, weights, num_samples).astype(jnp.int64)
    # The largest of log(weight) + Gumbel noise are a draw without replacement.
    scores = jnp.log(weights) + jax.random.gumbel(key, weights.shape, weights.dtype)
    return jax.lax.top_k(scores, num_samples)[1].astype(jnp.int64)


@lowers("aten.native_dropout.default", random=True)
def native_dropout(
    key: Key, input: jax.Array, p: float, train: bool | None
) -> tuple[jax.Array, jax.Array]:
    """The operand with entries dropped and the others scaled up, and which were kept."""
    if train is False or p == 0:
        return input, jnp.ones(input.shape, bool)
    keep = _drawn(jax.random.uniform, key, input.shape, jnp.float32) >= p
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return jnp.where(keep, input * scalar(scale, input), 0), keep


@lowers("aten._fused_dropout.default", random=True)
def fused_dropout(key: Key, self: jax.Array, p: float, **_: Any) -> tuple[jax.Array, jax.Array]:
    # Here p is the probability to stay, and the mask is of bytes.
    kept, mask = native_dropout(key, self, 1 - p, True)
    return kept, mask.astype(jnp.uint8)


@lowers("aten.rrelu_with_noise_functional.default", random=True)
def rrelu_with_noise(
    key: Key,
    self: jax.Array,
    noise: jax.Array,
    lower: Number = 0.125,
    upper: Number = 1 / 3,
    training: bool = False,
    **_: Any,
) -> tuple[jax.Array, jax.Array]:
    """Leaky relu with a random slope for each negative number, and the slopes used."""
    low, high = scalar(lower, self), scalar(upper, self)
    if not training:
        return jnp.where(self >= 0, self, self * ((low + high) / 2)), noise
    slopes = low + (high - low) * unit(key, self.shape, self.dtype)
    slopes = jnp.where(self <= 0, slopes, jnp.ones((), self.dtype))
    return self * slopes, slopes


def _threefry(key: Key) -> Key:
    """A key of JAX's threefry, which is all that its Poisson sampler takes."""
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl="threefry2x32")


@lowers("aten.poisson.default", random=True)
def poisson(key: Key, self: jax.Array, generator: Any = None) -> jax.Array:
    rates = self if self.dtype == jnp.float64 else self.astype(jnp.float32)
    return jax.random.poisson(_threefry(key), rates, dtype=jnp.int64).astype(self.dtype)


@lowers("aten.binomial.default", random=True)
def binomial(key: Key, count: jax.Array, prob: jax.Array, generator: Any = None) -> jax.Array:
    wide = jnp.float64 if jnp.float64 in (count.dtype, prob.dtype) else jnp.float32
    drawn = jax.random.binomial(keys.own(key), count.astype(wide), prob.astype(wide), dtype=wide)
    return drawn.astype(count.dtype)


@lowers("aten._standard_gamma.default", random=True)
def standard_gamma(key: Key, self: jax.Array, generator: Any = None) -> jax.Array:
    alpha = self if self.dtype == jnp.float64 else self.astype(jnp.float32)
    drawn = jax.random.gamma(keys.own(key), alpha, dtype=alpha.dtype)
    # Zero has no logarithm: the distributions built on this need a positive number.
    return jnp.maximum(drawn, jnp.finfo(self.dtype).tiny).astype(self.dtype)


@lowers("aten._sample_dirichlet.default", random=True)
def sample_dirichlet(key: Key, self: jax.Array, generator: Any = None) -> jax.Array:
    alpha = self if self.dtype == jnp.float64 else self.astype(jnp.float32)
    drawn = jax.random.dirichlet(keys.own(key), alpha, dtype=alpha.dtype)
    tiny = jnp.finfo(drawn.dtype).tiny
    return jnp.clip(drawn, tiny, 1 - jnp.finfo(drawn.dtype).epsneg) if is_float(self) else drawn

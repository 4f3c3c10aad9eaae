"""Running sums, products and extremes along one dim, and gradients; of the operand's shape."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from torch_xdist.ops.arithmetic import logaddexp
from torch_xdist.ops.operands import convert, is_integral, opmath, widened
from torch_xdist.ops.scatter import write_elements
from torch_xdist.ops.settled import settled
from torch_xdist.ops.table import lowers

Pair = tuple[jax.Array, jax.Array]
_Operation = Callable[..., jax.Array]
# Up to here XLA's own loop over windows is as fast, and compiles faster.
_SHORT = 16
# Places of a piece on a CPU: 256 rows of 4096 take 2.5 ms, by pairs alone 3.9, in fours 2.8, in
# sixteens 6.8.
_PIECE = 8
# The same of links, each of which has a factor: 512 rows of 512 take 0.33 ms, by pairs alone 0.94,
# in eights 0.40, in sixteens 0.60.
_LINKS = 4


def _running(
    op: _Operation, short: _Operation, self: jax.Array, dim: int, identity: Any
) -> jax.Array:
    """`op` over everything up to each place.

    XLA's own (`short`) walks a window per place: 2 to 7 times slower on CPUs from 512 on.
    """
    if self.shape[dim] <= _SHORT:
        return short(self, axis=dim)
    return jax.lax.platform_dependent(
        self,
        cpu=lambda x: _by_pieces(op, x, dim, identity),
        default=lambda x: _by_pairs(op, x, dim),
    )


def _by_pairs(op: _Operation, x: jax.Array, dim: int) -> jax.Array:
    """Pairs before fours before eights."""
    found: jax.Array = jax.lax.associative_scan(op, x, axis=dim)
    return found


def _by_pieces(op: _Operation, x: jax.Array, dim: int, identity: Any) -> jax.Array:
    """What came before each piece by pairs, and the places of a piece one after the other.

    The array is read and written twice, where pairs of all places go through it once a level.
    """
    places = _places(x, dim, _PIECE)
    ends = _by_pairs(op, settled(functools.reduce(op, places)), dim)
    first = jnp.full_like(jax.lax.slice_in_dim(ends, 0, 1, axis=dim), identity)
    before = settled(jnp.concatenate([first, jax.lax.slice_in_dim(ends, 0, -1, axis=dim)], dim))
    return _joined([*itertools.accumulate(places, op, initial=before)][1:], dim, x.shape[dim])


def _places(x: jax.Array, dim: int, count: int) -> list[jax.Array]:
    """Pieces of `count` along a dim: their first elements, their second ones, and so on.

    The last piece is filled up with zeros.
    """
    padding = [(0, 0, 0)] * x.ndim
    padding[dim] = (0, -x.shape[dim] % count, 0)
    whole = jax.lax.pad(x, jnp.zeros((), x.dtype), padding)
    pieces = whole.reshape(*x.shape[:dim], -1, count, *x.shape[dim + 1 :])
    return [jax.lax.index_in_dim(pieces, i, dim + 1, keepdims=False) for i in range(count)]


def _joined(places: Sequence[jax.Array], dim: int, size: int) -> jax.Array:
    """The array of so many elements along a dim whose `_places` these are."""
    pieces = jnp.stack(places, dim + 1)
    shape = (*pieces.shape[:dim], -1, *pieces.shape[dim + 2 :])
    return jax.lax.slice_in_dim(pieces.reshape(shape), 0, size, axis=dim)


class _Link(NamedTuple):
    """How an element gets what the next one has.

    Attributes:
        factor: of the marks of both.
        pass_on: (the factor, what the next one has) to what comes through.
        both: the factors of two links in a row to that of both.
    """

    factor: _Operation
    pass_on: _Operation
    both: _Operation


_TIMES = _Link(lambda here, following: following, jnp.multiply, jnp.multiply)
_IF = _Link(jnp.equal, lambda holds, later: jnp.where(holds, later, 0), jnp.logical_and)


def _from_the_end(link: _Link, marks: jax.Array, own: jax.Array, dim: int) -> jax.Array:
    """Each element's own and, through its link, all that the next one has."""

    def chained(later: Pair, earlier: Pair) -> Pair:
        passed = link.pass_on(earlier[0], later[1])
        return link.both(earlier[0], later[0]), earlier[1] + passed

    def by_pairs(factors: jax.Array, own: jax.Array) -> jax.Array:
        pairs = factors, own
        found: Pair = jax.lax.associative_scan(chained, pairs, reverse=True, axis=dim)
        return found[1]

    def by_all(marks: jax.Array, own: jax.Array) -> jax.Array:
        return by_pairs(link.factor(marks, _shifted(marks, dim)), own)

    def by_pieces(marks: jax.Array, own: jax.Array) -> jax.Array:
        here, places = (_places(x, dim, _LINKS) for x in (marks, own))
        following = [*here[1:], settled(_shifted(here[0], dim))]
        factors = [*map(link.factor, here, following)]
        steps = [*zip(factors, places)][::-1]
        whole = settled(functools.reduce(link.both, factors))
        first = settled(_followed(link, steps, jnp.zeros_like(places[0]))[-1])
        after = settled(_shifted(by_pairs(whole, first), dim))
        return _joined(_followed(link, steps, after)[::-1], dim, own.shape[dim])

    if own.shape[dim] <= _SHORT:
        return by_all(marks, own)
    return jax.lax.platform_dependent(marks, own, cpu=by_pieces, default=by_all)


def _shifted(x: jax.Array, dim: int) -> jax.Array:
    """The next one of each element along a dim; 0 after the last."""
    end = jnp.zeros_like(jax.lax.slice_in_dim(x, 0, 1, axis=dim))
    return jnp.concatenate([jax.lax.slice_in_dim(x, 1, None, axis=dim), end], dim)


def _followed(link: _Link, steps: Sequence[Pair], after: jax.Array) -> list[jax.Array]:
    """What each of some links has, where the first one's next has `after`."""
    found = []
    for factor, own in steps:
        after = own + link.pass_on(factor, after)
        found.append(after)
    return found


def _accumulated(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    if dtype is not None:
        return widened(convert(self, dtype))
    return self.astype(jnp.int64) if is_integral(self) else widened(self)


@lowers("aten.cumsum.default")
def cumsum(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running(jnp.add, jax.lax.cumsum, self, dim % self.ndim, 0) if self.ndim else self


@lowers("aten.cumprod.default")
def cumprod(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running(jnp.multiply, jax.lax.cumprod, self, dim % self.ndim, 1) if self.ndim else self


def product_gradient(grad: jax.Array, self: jax.Array, products: jax.Array, dim: int) -> jax.Array:
    """The gradient of running products, of any numbers and zeros: without a division.

    Each product is the one before it times a number, so the gradient of a product is its own and,
    through that number, all of the next one's.
    """
    if self.ndim == 0:
        return grad
    dim %= self.ndim
    dtype = self.dtype
    grad, factors, products = widened(grad), widened(self), widened(products)
    whole = _from_the_end(_TIMES, factors, grad, dim)
    one = jnp.ones_like(jax.lax.slice_in_dim(factors, 0, 1, axis=dim))
    before = jnp.concatenate([one, jax.lax.slice_in_dim(products, 0, -1, axis=dim)], dim)
    return (whole * before).astype(dtype)


def extreme_gradient(grad: jax.Array, places: jax.Array, dim: int) -> jax.Array:
    """The gradient of running maxima or minima, which stood at these places.

    A place is that of a run of results, so it gets the sum of the run's gradients. On a CPU no
    scatter makes it, which XLA runs element by element.
    """
    if grad.ndim == 0:
        return grad
    dim %= grad.ndim
    own = widened(grad)

    def by_scatter(own: jax.Array, places: jax.Array) -> jax.Array:
        return write_elements(jnp.zeros_like(own), dim, places, own, "add")

    def by_runs(own: jax.Array, places: jax.Array) -> jax.Array:
        sums = _from_the_end(_IF, places, own, dim)
        here = jax.lax.broadcasted_iota(places.dtype, places.shape, dim)
        return jnp.where(places == here, sums, 0)

    found = jax.lax.platform_dependent(own, places, cpu=by_runs, default=by_scatter)
    return found.astype(grad.dtype)


def _extreme_identity(dtype: jnp.dtype, *, of_maxima: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf if of_maxima else jnp.inf
    if dtype == jnp.bool_:
        return not of_maxima
    info = jnp.iinfo(dtype)
    return info.min if of_maxima else info.max


def _running_extreme(self: jax.Array, dim: int, op: _Operation, short: _Operation) -> Pair:
    """The best number so far and its last position; a nan is best, and stays."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    identity = _extreme_identity(self.dtype, of_maxima=op is jnp.maximum)
    best = _running(op, short, self, dim, identity)
    narrow = jnp.int32 if self.shape[dim] < 2**31 else jnp.int64
    places = jax.lax.broadcasted_iota(narrow, self.shape, dim)
    hits = jnp.where((self == best) | (self != self), places, 0)
    return best, _running(jnp.maximum, jax.lax.cummax, hits, dim, 0).astype(jnp.int64)


@lowers("aten.cummax.default")
def cummax(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jnp.maximum, jax.lax.cummax)


@lowers("aten.cummin.default")
def cummin(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jnp.minimum, jax.lax.cummin)


@lowers("aten.logcumsumexp.default", "aten._logcumsumexp.default")
@opmath
def logcumsumexp(self: jax.Array, dim: int) -> jax.Array:
    if self.ndim == 0:
        return self
    return jax.lax.associative_scan(logaddexp, self, axis=dim % self.ndim)

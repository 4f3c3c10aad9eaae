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
# Places of a piece on a CPU, and of a piece of pieces: 1024 rows of 1024 take 0.5 ms, in fours 0.7,
# in sixteens, which XLA does not join in one kernel, 1.7.
_PIECE = 8
# The same of links, each of which has a factor: 512 rows of 512 take 0.33 ms, by pairs alone 0.94,
# in eights 0.40, in sixteens 0.60.
_LINKS = 4
# What torch adds and multiplies in on a CPU. It takes XLA a third longer: 0.83 instead of 0.61 ms.
_ACCUMULATED_IN = {jnp.dtype("float32"): jnp.float64, jnp.dtype("complex64"): jnp.complex128}


class _Running(NamedTuple):
    """An operation over everything up to each place.

    Attributes:
        op: of two arrays.
        short: XLA's own, of a few places.
        identity: what changes nothing.
        is_exact: whether it is of what the operands are, not of sums that are rounded.
    """

    op: _Operation
    short: _Operation
    identity: Any
    is_exact: bool = False


_SUM = _Running(jnp.add, jax.lax.cumsum, 0)
_PRODUCT = _Running(jnp.multiply, jax.lax.cumprod, 1)
_LAST = _Running(jnp.maximum, jax.lax.cummax, 0, is_exact=True)


def _running(running: _Running, self: jax.Array, dim: int, *, reverse: bool = False) -> jax.Array:
    """What it is up to each place; `reverse`: from each place to the end.

    XLA's own walks a window per place: 2 to 7 times slower on CPUs from 512 on.
    """
    if self.shape[dim] <= _SHORT:
        return running.short(self, axis=dim, reverse=reverse)

    def on_cpu(x: jax.Array) -> jax.Array:
        return _by_pieces(running, x, dim, reverse=reverse)

    def by_pairs(x: jax.Array) -> jax.Array:
        """Pairs before fours before eights."""
        found: jax.Array = jax.lax.associative_scan(running.op, x, axis=dim, reverse=reverse)
        return found

    return jax.lax.platform_dependent(self, cpu=on_cpu, default=by_pairs)


def _by_pieces(running: _Running, x: jax.Array, dim: int, *, reverse: bool) -> jax.Array:
    """What came before each piece by pieces of pieces, and its places one after the other.

    The array is read and written twice, where pairs of all places go through it once a level.
    """
    size, dtype = x.shape[dim], x.dtype
    wide = dtype if running.is_exact else _ACCUMULATED_IN.get(dtype, dtype)
    # Place by place: XLA would keep the whole array in the wide dtype.
    places = [part.astype(wide) for part in _places(x, dim, min(size, _PIECE), running.identity)]
    before = None
    if size > _PIECE:
        ends = settled(_one_by_one(running, places, reverse=reverse)[0 if reverse else -1])
        ends = _by_pieces(running, ends, dim, reverse=reverse)
        before = settled(_shifted(ends, dim, running.identity, reverse=not reverse))
    found = _one_by_one(running, places, before, reverse=reverse)
    return _joined([part.astype(dtype) for part in found], dim, size)


def _one_by_one(
    running: _Running, places: Sequence[jax.Array], before: Any = None, *, reverse: bool
) -> list[jax.Array]:
    """The operation over these places, after what came before them."""
    order = places[::-1] if reverse else places
    found = [*itertools.accumulate(order, running.op, initial=before)]
    found = found if before is None else found[1:]
    return found[::-1] if reverse else found


def _places(x: jax.Array, dim: int, count: int, fill: Any = 0) -> list[jax.Array]:
    """Pieces of `count` along a dim: their first elements, their second ones, and so on.

    The last piece is filled up.
    """
    padding = [(0, 0, 0)] * x.ndim
    padding[dim] = (0, -x.shape[dim] % count, 0)
    whole = jax.lax.pad(x, jnp.asarray(fill, x.dtype), padding)
    pieces = whole.reshape(*x.shape[:dim], -1, count, *x.shape[dim + 1 :])
    return [jax.lax.index_in_dim(pieces, i, dim + 1, keepdims=False) for i in range(count)]


def _joined(places: Sequence[jax.Array], dim: int, size: int) -> jax.Array:
    """The array of so many elements along a dim whose `_places` these are."""
    pieces = jnp.stack(places, dim + 1)
    shape = (*pieces.shape[:dim], -1, *pieces.shape[dim + 2 :])
    return jax.lax.slice_in_dim(pieces.reshape(shape), 0, size, axis=dim)


def _shifted(x: jax.Array, dim: int, fill: Any = 0, *, reverse: bool = False) -> jax.Array:
    """The next one of each element along a dim, or the one before; `fill` where there is none."""
    end = jnp.full_like(jax.lax.slice_in_dim(x, 0, 1, axis=dim), fill)
    if reverse:
        return jnp.concatenate([end, jax.lax.slice_in_dim(x, 0, -1, axis=dim)], dim)
    return jnp.concatenate([jax.lax.slice_in_dim(x, 1, None, axis=dim), end], dim)


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

    def by_all(marks: jax.Array, own: jax.Array) -> jax.Array:
        pairs = link.factor(marks, _shifted(marks, dim)), own
        found: Pair = jax.lax.associative_scan(chained, pairs, reverse=True, axis=dim)
        return found[1]

    def by_pieces(marks: jax.Array, own: jax.Array) -> jax.Array:
        here = _places(marks, dim, _LINKS)
        following = [*here[1:], settled(_shifted(here[0], dim))]
        return _linked(link, [*map(link.factor, here, following)], own, dim)

    if own.shape[dim] <= _SHORT:
        return by_all(marks, own)
    return jax.lax.platform_dependent(marks, own, cpu=by_pieces, default=by_all)


def _linked(link: _Link, factors: Sequence[jax.Array], own: jax.Array, dim: int) -> jax.Array:
    """The same by pieces, and pieces of pieces; the factors are the `_places` of all links'."""
    places, size = _places(own, dim, len(factors)), own.shape[dim]
    steps = [*zip(factors, places)][::-1]
    if size <= len(factors):
        after = jnp.zeros_like(places[0])
    else:
        whole = settled(functools.reduce(link.both, factors))
        first = settled(_followed(link, steps, jnp.zeros_like(places[0]))[-1])
        after = settled(_shifted(_linked(link, _places(whole, dim, _LINKS), first, dim), dim))
    return _joined(_followed(link, steps, after)[::-1], dim, size)


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
def cumsum(
    self: jax.Array, dim: int, *, dtype: torch.dtype | None = None, reverse: bool = False
) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running(_SUM, self, dim % self.ndim, reverse=reverse) if self.ndim else self


@lowers("aten.cumprod.default")
def cumprod(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running(_PRODUCT, self, dim % self.ndim) if self.ndim else self


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
    if self.dtype == jnp.bool_:
        best, places = _running_extreme(self.astype(jnp.uint8), dim, op, short)
        return best.astype(jnp.bool_), places
    dim %= self.ndim
    identity = _extreme_identity(self.dtype, of_maxima=op is jnp.maximum)
    best = _running(_Running(op, short, identity, is_exact=True), self, dim)
    narrow = jnp.int32 if self.shape[dim] < 2**31 else jnp.int64
    places = jax.lax.broadcasted_iota(narrow, self.shape, dim)
    hits = jnp.where((self == best) | (self != self), places, 0)
    return best, _running(_LAST, hits, dim).astype(jnp.int64)


@lowers("aten.cummax.default")
def cummax(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jnp.maximum, jax.lax.cummax)


@lowers("aten.cummin.default")
def cummin(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jnp.minimum, jax.lax.cummin)


@lowers("aten.logcumsumexp.default", "aten._logcumsumexp.default")
@opmath
def logcumsumexp(self: jax.Array, dim: int, *, reverse: bool = False) -> jax.Array:
    if self.ndim == 0:
        return self
    return jax.lax.associative_scan(logaddexp, self, axis=dim % self.ndim, reverse=reverse)

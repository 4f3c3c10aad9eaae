"""Connectionist temporal classification: Graves et al., 2006, equations 6 to 16.

Log probabilities are [t, b, c] (or [t, c]), targets [b, s] or all targets one after the other.
The forward variables are kept for the extended labels, which have a blank before, between and
after the target's labels: 2 s + 1 of them.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops.operands import widened
from torch_xdist.ops.table import lowers

_Lengths = Sequence[int] | jax.Array


def _rows(targets: jax.Array, lengths: jax.Array, longest: int) -> jax.Array:
    """[b, longest]: the targets of each sample; anything behind its length."""
    if targets.ndim == 2:
        return jnp.pad(targets, ((0, 0), (0, max(longest - targets.shape[1], 0))))[:, :longest]
    start = jnp.cumsum(lengths) - lengths
    places = start[:, None] + jnp.arange(longest)
    if targets.size == 0:
        return jnp.zeros(places.shape, targets.dtype)
    return targets[jnp.minimum(places, targets.size - 1)]


def _longest(targets: jax.Array, lengths: _Lengths) -> int:
    """Torch's width of the forward variables where the lengths are known, else a bound."""
    if isinstance(lengths, jax.Array):
        return targets.shape[1] if targets.ndim == 2 else targets.shape[0]
    return max(lengths, default=0)


def _extended(rows: jax.Array, blank: int) -> tuple[jax.Array, jax.Array]:
    """[b, 2 s + 1]: labels with blanks between; and whether the one before last may be skipped."""
    b, s = rows.shape
    labels = jnp.full((b, 2 * s + 1), blank, rows.dtype).at[:, 1::2].set(rows)
    before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    return labels, (labels != blank) & (labels != before)


def _log_sum(*terms: jax.Array) -> jax.Array:
    """log(sum(exp)) of arrays, -inf where all are, with gradients that are never nan."""
    top = terms[0]
    for term in terms[1:]:
        top = jnp.maximum(top, term)
    nothing = jnp.isneginf(top)
    top = lax.stop_gradient(jnp.where(nothing, 0, top))
    total = sum(jnp.exp(term - top) for term in terms)
    return jnp.where(nothing, -jnp.inf, jnp.log(jnp.where(nothing, 1, total)) + top)


def _forward_variables(
    log_probs: jax.Array, labels: jax.Array, may_skip: jax.Array, first: jax.Array
) -> jax.Array:
    """[t, b, 2 s + 1]: the log probability of all ways to each extended label at each time.

    `first` [b, 2 s + 1] says which labels a sequence may start with.
    """
    seen = jnp.take_along_axis(
        log_probs, jnp.broadcast_to(labels, (len(log_probs), *labels.shape)), 2
    )
    nothing = -jnp.inf
    start = jnp.where(first, seen[0], nothing)

    def step(alpha: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=nothing)[:, :-1]
        two = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=nothing)[:, :-2]
        alpha = _log_sum(alpha, one, jnp.where(may_skip, two, nothing)) + now
        return alpha, alpha

    _, rest = lax.scan(step, start, seen[1:])
    return jnp.concatenate([start[None], rest])


def _negative_log_likelihood(
    log_probs: jax.Array,
    rows: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    blank: int,
) -> tuple[jax.Array, jax.Array]:
    """[b], and the forward variables [t, b, 2 s + 1]."""
    labels, may_skip = _extended(rows, blank)
    places = jnp.arange(labels.shape[1])
    first = (places < 2) & (places <= 2 * target_lengths[:, None])
    alpha = _forward_variables(log_probs, labels, may_skip, first)
    samples = jnp.arange(labels.shape[0])
    end = alpha[jnp.maximum(input_lengths - 1, 0), samples]
    last = 2 * target_lengths[:, None]
    final = jnp.take_along_axis(end, last, 1)[:, 0]
    label = jnp.take_along_axis(end, jnp.maximum(last - 1, 0), 1)[:, 0]
    label = jnp.where(target_lengths > 0, label, -jnp.inf)
    found = -_log_sum(final, label)
    # Without any time only the empty target has a way.
    no_time = jnp.where(target_lengths == 0, 0.0, jnp.inf)
    return jnp.where(input_lengths == 0, no_time, found), alpha


def _batched(
    log_probs: jax.Array, targets: jax.Array, input_lengths: _Lengths, target_lengths: _Lengths
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Log probabilities [t, b, c], targets [b, s], and both lengths [b]."""
    probs = widened(log_probs)
    probs = probs if probs.ndim == 3 else probs[:, None]
    longest = _longest(targets, target_lengths)
    inputs = jnp.asarray(input_lengths, jnp.int64).reshape(-1)
    lengths = jnp.asarray(target_lengths, jnp.int64).reshape(-1)
    return probs, _rows(targets.astype(jnp.int64), lengths, longest), inputs, lengths


@lowers("aten._ctc_loss.default", "aten._ctc_loss.Tensor", shaped=True)
def ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: _Lengths,
    target_lengths: _Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    probs, rows, inputs, lengths = _batched(log_probs, targets, input_lengths, target_lengths)
    loss, alpha = _negative_log_likelihood(probs, rows, inputs, lengths, blank)
    alpha = alpha.swapaxes(0, 1).astype(log_probs.dtype)
    loss = loss.astype(log_probs.dtype)
    return (loss, alpha) if log_probs.ndim == 3 else (loss.reshape(()), alpha[0])


@lowers("aten._ctc_loss_backward.default", "aten._ctc_loss_backward.Tensor", shaped=True)
def ctc_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: _Lengths,
    target_lengths: _Lengths,
    neg_log_likelihood: jax.Array,
    log_alpha: jax.Array,
    blank: int,
    zero_infinity: bool = False,
) -> jax.Array:
    probs, rows, inputs, lengths = _batched(log_probs, targets, input_lengths, target_lengths)

    def loss(probs: jax.Array) -> jax.Array:
        return _negative_log_likelihood(probs, rows, inputs, lengths, blank)[0]

    value, pull = jax.vjp(loss, probs)
    (slope,) = pull(jnp.ones_like(value))
    # torch folds the gradient of a log_softmax before the loss into this one.
    found = jnp.exp(probs) + slope
    possible = jnp.isfinite(value)
    nothing = 0.0 if zero_infinity else jnp.nan
    found = jnp.where(possible[:, None], found, nothing) * grad.reshape(-1)[:, None]
    if zero_infinity:
        found = jnp.where(possible[:, None], found, 0)
    times = jnp.arange(len(probs))[:, None, None]
    found = jnp.where(times < inputs[:, None], found, 0)
    return found.reshape(log_probs.shape).astype(log_probs.dtype)

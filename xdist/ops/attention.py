"""Scaled dot product attention, forward and backward.

Queries are [..., t, d], keys [..., s, d], values [..., s, e], with equal leading dimensions. The
backward pass computes the weights again in exactly the forward pass's words, so XLA merges both
where they stand in one program and nothing of size t x s is kept between programs.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops import forms
from torch_xdist.ops.operands import wide
from torch_xdist.ops.positions import counted
from torch_xdist.ops.settled import settled
from torch_xdist.ops.table import lowers

_Maybe = jax.Array | None
# Of more weights of one head, in all or for each channel squared, a CPU takes sums over the queries
# the other way around, so that XLA need not read the weights against their order: backward passes
# of 8 heads of 512 x 512 and 64 channels 12.2, 9.3 ms; of 32 channels 10.3, 6.6; 4 of 1024 x 1024
# 37.8, 28.4; 8 of 384 x 384 6.1, 5.3; but 24 of 197 x 197 3.3, 3.9 (2 cores of an EPYC with
# AVX-512, 2026-11-28). With forward passes 32 heads of 256 x 256 and 8 channels 9.9, 4.6 ms, 16
# channels 11.2, 6.6, 32 11.3, 8.1, 64 15.2, 13.0; 64 of 128 x 128 and 32 5.9, 5.2; but 128 of 64 x
# 64 and 64 4.7, 5.7 (2 cores of a Xeon with AVX-512, the same day).
_MANY_WEIGHTS = 2**17
_MANY_FOR_A_CHANNEL = 16
# From so many the mean of a row's gradient is quicker from the result (`_has_short_mean`). With
# forward passes, of 64 channels: 8 heads of 512 x 512 13.5, 10.9 ms; 32 of 256 x 256 15.8, 13.9; 4
# of 1024 x 1024, causal, 32.1, 19.1; of 32 channels 64 of 128 x 128, causal, 7.2, 6.4 (2 cores of a
# Xeon with AVX-512, 2026-11-28).
_LARGE_WEIGHTS = 2**14
# From so many queries on, a CPU computes causal attention by blocks of them, of which each has the
# keys that it may see alone, as torch's kernel does: 2 blocks leave 3/4 of all weights, 4 leave
# 5/8. More have ever smaller products (`docs/optimizations.md` has the times).
_QUERIES_OF_TWO_BLOCKS = 192
_QUERIES_OF_FOUR_BLOCKS = 768
_ROWS_OF_A_BLOCK = 16  # or several times as many
# Query, key, value and mask.
_Saved = tuple[jax.Array, jax.Array, jax.Array, _Maybe]


class _Block(NamedTuple):
    """Queries from `first` to `last`, and how many keys they have.

    Attributes:
        causal_from: where the keys after a query are not seen, the place of the first query; None
            where all are.
    """

    first: int
    last: int
    keys: int
    causal_from: int | None


def _blocks(query: jax.Array, key: jax.Array, mask: _Maybe, is_causal: bool) -> list[_Block]:
    t, s = query.shape[-2], key.shape[-2]
    count = 1
    if is_causal and mask is None and forms.chosen().is_host:
        count += (t >= _QUERIES_OF_TWO_BLOCKS) + 2 * (t >= _QUERIES_OF_FOUR_BLOCKS)
    if count == 1:
        return [_Block(0, t, s, 0 if is_causal else None)]
    rows = math.ceil(t / count / _ROWS_OF_A_BLOCK) * _ROWS_OF_A_BLOCK
    ends = [(first, min(first + rows, t)) for first in range(0, t, rows)]
    return [_Block(first, last, min(last, s), first) for first, last in ends]


def _rows(x: jax.Array, first: int, last: int) -> jax.Array:
    """[..., t, d], of t those from first to last."""
    return x if last - first == x.shape[-2] else lax.slice_in_dim(x, first, last, axis=-2)


def _behind_each_other(parts: Sequence[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -2)


def _sum_of_first_rows(parts: Sequence[jax.Array], n: int) -> jax.Array:
    """The sum of arrays [..., m, d], each of which is of the first m of n rows."""
    *lead, last = [(0, 0, 0)] * (parts[0].ndim - 1)
    longest = (
        lax.pad(part, jnp.zeros((), part.dtype), [*lead, (0, n - part.shape[-2], 0), last])
        if part.shape[-2] < n
        else part
        for part in parts
    )
    return functools.reduce(operator.add, longest)


def _scale(query: jax.Array, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=wide(b.dtype))


def _scores(
    query: jax.Array, key: jax.Array, mask: _Maybe, causal_from: int | None, scale: float
) -> jax.Array:
    """[..., t, s]: -inf where a key may not be seen."""
    scores = _product("...td,...sd->...ts", query, key) * scale
    if causal_from is not None:
        t, s = scores.shape[-2:]
        past = counted(t)[:, None] + causal_from >= counted(s)
        scores = jnp.where(past, scores, -jnp.inf)
    if mask is not None:
        if mask.dtype == jnp.bool_:
            scores = jnp.where(mask, scores, -jnp.inf)
        else:
            scores = scores + mask.astype(scores.dtype)
    return scores


def _powers(
    query: jax.Array, key: jax.Array, mask: _Maybe, causal_from: int | None, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Exponentials of the scores, the largest of each row 1, and their sums (1 where all are 0).

    The softmax is one by the other; rows without any key are 0, not nan.
    """
    scores = _scores(query, key, mask, causal_from, scale)
    top = scores.max(-1, keepdims=True)
    if mask is not None:
        top = jnp.where(jnp.isneginf(top), 0, top)
    powers = jnp.exp(scores - top)
    total = powers.sum(-1, keepdims=True)
    return powers, total if mask is None else jnp.where(total == 0, 1, total)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: _Maybe,
    is_causal: bool,
    scale: float,
) -> jax.Array:
    """[..., t, e]. A bool mask is True where a key may be seen; others are added to the scores."""
    outs = []
    for block in _blocks(query, key, mask, is_causal):
        seen = [_rows(x, 0, block.keys) for x in (key, value)]
        queries = _rows(query, block.first, block.last)
        powers, total = _powers(queries, seen[0], mask, block.causal_from, scale)
        outs.append(_mixture(powers, total, seen[1]).astype(query.dtype))
    return _behind_each_other(outs)


def _mixture(powers: jax.Array, total: jax.Array, value: jax.Array) -> jax.Array:
    """[..., t, e], of float32 at least: the values, each by its share of the powers.

    Divided at the end, as in torch's kernel: there are fewer numbers than shares, and halves are
    rounded before, where the largest is 1, which no rounding changes. XLA:CPU computes scores,
    powers and product in one walk so: of 64 heads of 128 x 128 and 32 channels 1.5, 1.1 ms, causal
    2.0, 1.6; of 24 of 197 x 197 and 64 2.2, 1.5 (2 cores of a Xeon with AVX-512, 2026-11-28).
    """
    return _product("...ts,...se->...te", powers.astype(value.dtype), value) / total


def _attend_forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: _Maybe,
    is_causal: bool,
    scale: float,
) -> tuple[jax.Array, _Saved]:
    return attend(query, key, value, mask, is_causal, scale), (query, key, value, mask)


def _attend_backward(
    is_causal: bool, scale: float, saved: _Saved, grad: jax.Array
) -> tuple[_Maybe, ...]:
    query, key, value, mask = saved
    parts = []
    for block in _blocks(query, key, mask, is_causal):
        first, last, keys, causal_from = block
        of_block = _rows(query, first, last), _rows(key, 0, keys), _rows(value, 0, keys), mask
        parts.append(_gradients(of_block, _rows(grad, first, last), causal_from, scale))
    queries, keys, values, scores = zip(*parts)
    return (
        _behind_each_other(queries),
        _sum_of_first_rows(keys, key.shape[-2]).astype(key.dtype),
        _sum_of_first_rows(values, key.shape[-2]).astype(value.dtype),
        _mask_gradient(mask, scores[0]),
    )


def _gradients(
    saved: _Saved, grad: jax.Array, causal_from: int | None, scale: float
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Those of queries, of keys and values, which are not rounded, and of the scores."""
    query, key, value, mask = saved
    powers, total = _powers(query, key, mask, causal_from, scale)
    is_wide = value.dtype == wide(value.dtype)
    # Halves are rounded as shares; of others what has fewer numbers is divided.
    weights = powers if is_wide else powers / total

    def shared(x: jax.Array) -> jax.Array:
        return x / total if is_wide else x

    grad_value = _over_queries(weights.astype(value.dtype), shared(grad))
    grad_weights = _product("...te,...se->...ts", grad, value)
    if _has_short_mean(value, weights, mask):
        mean = (grad * _mixture(powers, total, value)).sum(-1, keepdims=True)
    else:
        mean = shared((grad_weights * weights).sum(-1, keepdims=True))
    grad_scores = weights * (grad_weights - mean)
    small = grad_scores.astype(query.dtype)
    grad_query = shared(_product("...ts,...sd->...td", small, key) * scale).astype(query.dtype)
    grad_key = _over_queries(small, shared(query)) * scale
    return grad_query, grad_key, grad_value, shared(grad_scores)


def _has_short_mean(value: jax.Array, weights: jax.Array, mask: _Maybe) -> bool:
    """Whether rows of the gradient's mean are summed over e numbers of the result, not s weights.

    It is what torch's kernel does, to which it gives four dims and no mask with a gradient: a row
    of one key has a gradient near 0 in both, and not 0. Halves would be of rounded shares.
    """
    is_kernels = value.ndim == 4 and (mask is None or mask.dtype == jnp.bool_)
    is_large = math.prod(weights.shape[-2:]) >= _LARGE_WEIGHTS
    return is_kernels and is_large and value.dtype == wide(value.dtype)


def _over_queries(weights: jax.Array, x: jax.Array) -> jax.Array:
    """[..., t, s] and [..., t, d], summed over t: [..., s, d]."""
    many = min(_MANY_WEIGHTS, _MANY_FOR_A_CHANNEL * x.shape[-1] ** 2)
    if forms.chosen().is_host and math.prod(weights.shape[-2:]) >= many:
        # Not settled, XLA turns the product back around where there are several leading dims.
        turned = _product("...dt,...ts->...ds", settled(x.swapaxes(-1, -2)), weights)
        return settled(turned).swapaxes(-1, -2)
    return _product("...ts,...td->...sd", weights, x)


def _mask_gradient(mask: _Maybe, grad_scores: jax.Array) -> _Maybe:
    """None for no mask; for a bool one JAX wants zeros without a value."""
    if mask is None:
        return None
    if mask.dtype == jnp.bool_:
        return jnp.zeros(mask.shape, jax.dtypes.float0)
    lead = grad_scores.ndim - mask.ndim
    summed = grad_scores.sum(tuple(range(lead)))
    axes = tuple(i for i, n in enumerate(mask.shape) if n == 1 and summed.shape[i] != 1)
    return summed.sum(axes, keepdims=True).astype(mask.dtype)


attend.defvjp(_attend_forward, _attend_backward)


def _by_cudnn(
    is_causal: bool, scale: float, *operands: jax.Array
) -> tuple[jax.Array, Callable[[jax.Array], tuple[jax.Array, ...]]]:
    """cuDNN's result, and its gradients by that of the result."""
    whole = functools.partial(_whole_by_cudnn, is_causal, scale)
    # cuDNN has heads behind the sequence; XLA makes the exchange a layout where it can.
    found, pull = jax.vjp(whole, *(array.swapaxes(1, 2) for array in operands))

    def back(grad: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(part.swapaxes(1, 2) for part in pull(grad.swapaxes(1, 2)))

    return found.swapaxes(1, 2), back


def _whole_by_cudnn(
    is_causal: bool, scale: float, query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
    """Of [b, t, heads, d]; JAX has no gradient for an odd t, so one more is passed over."""
    named: Any = {"is_causal": is_causal, "scale": scale, "implementation": "cudnn"}
    b, t = query.shape[:2]
    if t % 2 == 0:
        return jax.nn.dot_product_attention(query, key, value, **named)
    lengths = jnp.full(b, t, jnp.int32)
    named |= {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    one_more = ((0, 0), (0, 1), (0, 0), (0, 0))
    even = [jnp.pad(array, one_more) for array in (query, key, value)]
    return jax.nn.dot_product_attention(*even, **named)[:, :t]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def attend_by_cudnn(
    query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool, scale: float
) -> jax.Array:
    """`attend` of [b, heads, t, d] halves by cuDNN's kernels; its backward pass is theirs too.

    That begins with the forward pass in the same words, so XLA merges both where they stand in one
    program. Its own gradient cannot be taken.
    """
    return _by_cudnn(is_causal, scale, query, key, value)[0]


def _by_cudnn_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool, scale: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return attend_by_cudnn(query, key, value, is_causal, scale), (query, key, value)


def _by_cudnn_backward(
    is_causal: bool, scale: float, saved: tuple[jax.Array, ...], grad: jax.Array
) -> tuple[jax.Array, ...]:
    return _by_cudnn(is_causal, scale, *saved)[1](grad)


attend_by_cudnn.defvjp(_by_cudnn_forward, _by_cudnn_backward)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: _Maybe = None,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Also the logarithm of each row's sum of exponentials, [b, heads, t]."""
    scale = _scale(query, scale)
    scores = _scores(query, key, attn_mask, 0 if is_causal else None, scale)
    out = attend(query, key, value, attn_mask, is_causal, scale)
    return out, jax.nn.logsumexp(scores, -1)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    grad_out: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: _Maybe = None,
    scale: float | None = None,
) -> tuple[_Maybe, ...]:
    saved = (query, key, value, attn_mask)
    return _attend_backward(is_causal, _scale(query, scale), saved, grad_out)[:3]

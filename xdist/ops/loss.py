"""Losses and their gradients.

`reduction` is torch's number: 0 none, 1 mean, 2 sum. Half precision is computed in float32 and
rounded once by the caller. Losses that torch composes of other operators (l1, kl_div, cosine,
triplet, cross entropy) arrive as their parts and have no row. CTC is in `ctc.py`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import widened
from torch_xdist.ops.positions import narrowed
from torch_xdist.ops.table import lowers

_NONE, _MEAN = 0, 1
_Maybe = jax.Array | None


def _reduced(losses: jax.Array, reduction: int) -> jax.Array:
    if reduction == _NONE:
        return losses
    return losses.mean() if reduction == _MEAN else losses.sum()


def _spread(grad: jax.Array, losses: jax.Array, reduction: int) -> jax.Array:
    """The gradient of each loss, given the gradient of what `_reduced` returned."""
    grad = widened(grad)
    return grad / max(losses.size, 1) if reduction == _MEAN else grad


# Elementwise losses of a prediction and a target of one shape. `widened` and the promotion of
# operands of two dtypes are torch's: the wider of both.


def _pair(self: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    dtype = jnp.promote_types(widened(self).dtype, widened(target).dtype)
    x, y = jnp.broadcast_arrays(self.astype(dtype), target.astype(dtype))
    return x, y


@lowers("aten.mse_loss.default")
def mse_loss(self: jax.Array, target: jax.Array, reduction: int = _MEAN) -> jax.Array:
    x, y = _pair(self, target)
    return _reduced(jnp.square(x - y), reduction)


@lowers("aten.mse_loss_backward.default")
def mse_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    x, y = _pair(self, target)
    return 2 * (x - y) * _spread(grad_output, x, reduction)


@lowers("aten.smooth_l1_loss.default")
def smooth_l1_loss(
    self: jax.Array, target: jax.Array, reduction: int = _MEAN, beta: float = 1.0
) -> jax.Array:
    x, y = _pair(self, target)
    distance = jnp.abs(x - y)
    if beta == 0:
        return _reduced(distance, reduction)
    near = 0.5 * distance * distance / beta
    return _reduced(jnp.where(distance < beta, near, distance - 0.5 * beta), reduction)


@lowers("aten.smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, beta: float
) -> jax.Array:
    x, y = _pair(self, target)
    difference, grad = x - y, _spread(grad_output, x, reduction)
    slope = jnp.sign(difference)
    if beta != 0:
        slope = jnp.where(jnp.abs(difference) < beta, difference / beta, slope)
    return slope * grad


@lowers("aten.huber_loss.default")
def huber_loss(
    self: jax.Array, target: jax.Array, reduction: int = _MEAN, delta: float = 1.0
) -> jax.Array:
    x, y = _pair(self, target)
    distance = jnp.abs(x - y)
    near = 0.5 * distance * distance
    losses = jnp.where(distance < delta, near, delta * (distance - 0.5 * delta))
    return _reduced(losses, reduction)


@lowers("aten.huber_loss_backward.default")
def huber_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, delta: float
) -> jax.Array:
    x, y = _pair(self, target)
    return jnp.clip(x - y, -delta, delta) * _spread(grad_output, x, reduction)


@lowers("aten.soft_margin_loss.default")
def soft_margin_loss(self: jax.Array, target: jax.Array, reduction: int = _MEAN) -> jax.Array:
    x, y = _pair(self, target)
    return _reduced(jnp.log1p(jnp.exp(-y * x)), reduction)


@lowers("aten.soft_margin_loss_backward.default")
def soft_margin_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    x, y = _pair(self, target)
    return -y * jax.nn.sigmoid(-y * x) * _spread(grad_output, x, reduction)


# Binary cross entropy.


def _weighted(losses: jax.Array, weight: _Maybe) -> jax.Array:
    return losses if weight is None else losses * widened(weight)


@lowers("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    self: jax.Array, target: jax.Array, weight: _Maybe = None, reduction: int = _MEAN
) -> jax.Array:
    x, y = _pair(self, target)
    # torch cuts the logarithms off at -100.
    losses = (y - 1) * jnp.maximum(jnp.log1p(-x), -100) - y * jnp.maximum(jnp.log(x), -100)
    return _reduced(_weighted(losses, weight), reduction)


@lowers("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: _Maybe = None,
    reduction: int = _MEAN,
) -> jax.Array:
    x, y = _pair(self, target)
    slope = (x - y) / jnp.maximum((1 - x) * x, 1e-12)
    return _weighted(slope * _spread(grad_output, x, reduction), weight)


@lowers("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    self: jax.Array,
    target: jax.Array,
    weight: _Maybe = None,
    pos_weight: _Maybe = None,
    reduction: int = _MEAN,
) -> jax.Array:
    x, y = _pair(self, target)
    log_sigmoid = jax.nn.log_sigmoid(x)
    if pos_weight is None:
        losses = (1 - y) * x - log_sigmoid
    else:
        losses = (1 - y) * x - ((widened(pos_weight) - 1) * y + 1) * log_sigmoid
    return _reduced(_weighted(losses, weight), reduction)


def _narrow_target(self: jax.Array, target: jax.Array, ignore_index: int = 0) -> jax.Array:
    """The classes of a target, and what stands there for none, no wider than they need be."""
    return narrowed(target, max(self.shape[_class_axis(self)], abs(ignore_index) + 1))


# Negative log likelihood: input [n, c, *positions] or [c], target [n, *positions] or [].


def _class_axis(self: jax.Array) -> int:
    return 0 if self.ndim == 1 else 1


def _chosen(self: jax.Array, target: jax.Array) -> jax.Array:
    """[n, c, *positions]: whether a class is the target's. False everywhere where ignored."""
    axis = _class_axis(self)
    shape = [1] * self.ndim
    shape[axis] = self.shape[axis]
    classes = jnp.arange(self.shape[axis], dtype=jnp.int32).reshape(shape)
    return jnp.expand_dims(target.astype(jnp.int32), axis) == classes


def _nll_weights(
    self: jax.Array, target: jax.Array, weight: _Maybe, ignore_index: int
) -> jax.Array:
    """The weight of each target, 0 where it is ignored; of the target's shape."""
    dtype = widened(self).dtype
    counts = target != ignore_index
    if weight is None:
        return counts.astype(dtype)
    inside = jnp.where(counts, target, 0)
    return jnp.where(counts, widened(weight)[inside], 0)


@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(
    self: jax.Array, target: jax.Array, weight: _Maybe, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    axis, x = _class_axis(self), widened(self)
    target = _narrow_target(self, target, ignore_index)
    weights = _nll_weights(self, target, weight, ignore_index)
    inside = jnp.where(target == ignore_index, 0, target)
    picked = jnp.take_along_axis(x, jnp.expand_dims(inside, axis), axis).squeeze(axis)
    # An ignored position may hold inf, which 0 would not silence.
    losses = jnp.where(target == ignore_index, 0, -picked * weights)
    if reduction == _NONE:
        # torch still reports the weight of a single unbatched target.
        return losses, weights if self.ndim == 1 else jnp.zeros((), x.dtype)
    total = weights.sum()
    return losses.sum() / total if reduction == _MEAN else losses.sum(), total


@lowers("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: _Maybe,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    target = _narrow_target(self, target, ignore_index)
    weights = _nll_weights(self, target, weight, ignore_index)
    grad = widened(grad_output)
    if reduction == _MEAN:
        grad = grad / widened(total_weight)
    # A comparison with every class is one fused loop; writing single elements is a serial one.
    share = jnp.expand_dims(
        jnp.where(target == ignore_index, 0, -grad * weights), _class_axis(self)
    )
    return jnp.where(_chosen(self, target), share, 0)


# Margin losses over classes: input [n, c] or [c].


def _by_sample(losses: jax.Array, self: jax.Array, reduction: int) -> jax.Array:
    """Reduce losses [n] of an input that may have had no sample dimension."""
    if reduction == _NONE and self.ndim < 2:
        return losses.reshape(())
    return _reduced(losses, reduction)


def _multi_margin(
    x: jax.Array, target: jax.Array, p: complex, margin: complex, weight: _Maybe
) -> jax.Array:
    """[n], for x [n, c] and target [n]."""
    own = jnp.take_along_axis(x, target[:, None], 1)
    gap = jnp.maximum(margin - own + x, 0)
    gap = jnp.where(jnp.asarray(p) == 1, gap, gap * gap)
    gap = gap if weight is None else gap * widened(weight)[target][:, None]
    return jnp.where(_chosen(x, target), 0, gap).sum(1) / x.shape[1]


@lowers("aten.multi_margin_loss.default")
def multi_margin_loss(
    self: jax.Array,
    target: jax.Array,
    p: complex = 1,
    margin: complex = 1,
    weight: _Maybe = None,
    reduction: int = _MEAN,
) -> jax.Array:
    x = jnp.atleast_2d(widened(self))
    losses = _multi_margin(x, jnp.atleast_1d(target), p, margin, weight)
    return _by_sample(losses, self if target.ndim else self.reshape(-1), reduction)


def _pulled_back(
    losses: Callable[[jax.Array], jax.Array], x: jax.Array, grad: jax.Array, reduction: int
) -> jax.Array:
    """The gradient by `x` of `losses` [n] after reduction."""
    value, pull = jax.vjp(losses, x)
    return pull(jnp.broadcast_to(_spread(grad, value, reduction), value.shape))[0]


@lowers("aten.multi_margin_loss_backward.default", shaped=True)
def multi_margin_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    p: complex,
    margin: complex,
    weight: _Maybe = None,
    reduction: int = _MEAN,
) -> jax.Array:
    x, target = jnp.atleast_2d(widened(self)), jnp.atleast_1d(target)
    own = jnp.take_along_axis(x, target[:, None], 1)
    gap = margin - own + x
    slope = jnp.where(jnp.asarray(p) == 1, 1, 2 * gap)
    slope = slope if weight is None else slope * widened(weight)[target][:, None]
    chosen = _chosen(x, target)
    slope = jnp.where((gap > 0) & ~chosen, slope, 0) / x.shape[1]
    slope = jnp.where(chosen, -slope.sum(1, keepdims=True), slope)
    grad = _spread(grad_output, own, reduction).reshape(-1, 1)
    return (slope * grad).reshape(self.shape).astype(self.dtype)


def _multilabel_targets(x: jax.Array, target: jax.Array) -> jax.Array:
    """[n, c]: 1 for every class listed in a row of `target` before its first -1."""
    listed = jnp.cumsum(target < 0, 1) == 0
    classes = jnp.arange(x.shape[1])
    return ((target[:, :, None] == classes) & listed[:, :, None]).any(1)


def _multilabel_margin(x: jax.Array, target: jax.Array) -> jax.Array:
    """[n]: for each listed class and each class that is not listed, 1 - listed + other."""
    listed = jnp.cumsum(target < 0, 1) == 0
    own = jnp.take_along_axis(x, jnp.maximum(target, 0), 1)
    counts = listed[:, :, None] & ~_multilabel_targets(x, target)[:, None, :]
    gap = 1 - own[:, :, None] + x[:, None, :]
    # The gradient at a gap of exactly 0 is 0, as torch has it.
    return jnp.where(counts & (gap > 0), gap, 0).sum((1, 2)) / x.shape[1]


@lowers("aten.multilabel_margin_loss_forward.default")
def multilabel_margin_loss_forward(
    self: jax.Array, target: jax.Array, reduction: int
) -> tuple[jax.Array, jax.Array]:
    x, listed = jnp.atleast_2d(widened(self)), jnp.atleast_2d(target)
    losses = _by_sample(_multilabel_margin(x, listed), self, reduction)
    return losses, _multilabel_targets(x, listed).astype(x.dtype).reshape(target.shape)


@lowers("aten.multilabel_margin_loss_backward.default", shaped=True)
def multilabel_margin_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    reduction: int,
    is_target: jax.Array,
) -> jax.Array:
    x, listed = jnp.atleast_2d(widened(self)), jnp.atleast_2d(target)
    grad = _pulled_back(lambda x: _multilabel_margin(x, listed), x, grad_output, reduction)
    return grad.reshape(self.shape).astype(self.dtype)

"""Batch norm, forward and backward, and what norms have in common.

Half precision is computed in float32 and rounded once. The statistics that are returned have the
dtype of the parameters, as on the CPU (torch's meta kernels say float32, as on cuda). Variances
are taken in two passes (mean first), which XLA fuses into two loops over the input; those of batch
norm on GPUs in one, as reading the input is all that they take.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops import forms
from torch_xdist.ops.operands import widened
from torch_xdist.ops.table import lowers

Maybe = jax.Array | None


def saved_dtype(input: jax.Array, *others: Maybe) -> jnp.dtype:
    """The dtype of the parameters, where there are any."""
    return next((other.dtype for other in others if other is not None), input.dtype)


def unrounded(mean: jax.Array, x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """The mean of `x` over `axes`, kept with size 1; `mean` is what the forward pass saved of it.

    Half precision rounds that, which would shift every normalised value where the mean is large.
    """
    if mean.dtype != x.dtype:
        return x.mean(axes, keepdims=True)
    return mean.reshape([1 if i in axes else n for i, n in enumerate(x.shape)])


def scaled(x: jax.Array, weight: Maybe, bias: Maybe) -> jax.Array:
    """x * weight + bias, either of which may be missing."""
    x = x if weight is None else x * widened(weight)
    return x if bias is None else x + widened(bias)


# Batch norm: statistics per channel, which is dimension 1; input [n, c, ...]. They are [c] from the
# first: XLA would update a weight in the shape of [1, c, 1, 1] that its gradient comes from, and
# copy it for that.


def _channel_axes(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _per_channel(values: jax.Array, x: jax.Array) -> jax.Array:
    """`values` [c] in the rank of `x`."""
    return widened(values).reshape(1, -1, *(1,) * (x.ndim - 2))


def _scaled_per_channel(x: jax.Array, weight: Maybe, bias: Maybe) -> jax.Array:
    x = x if weight is None else x * _per_channel(weight, x)
    return x if bias is None else x + _per_channel(bias, x)


def _channel_moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance [c]."""
    axes = _channel_axes(x)
    mean = x.mean(axes)
    return mean, jnp.square(x - _per_channel(mean, x)).mean(axes)


def _moments_at_once(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`_channel_moments` in one pass, over distances from one element of each channel.

    The square of the mean distance is subtracted: of an element k standard deviations from the mean
    k^2 times float32's precision is lost, however large the mean is.
    """
    if not x.size:
        return _channel_moments(x)
    axes = _channel_axes(x)
    near = x[(0, slice(None), *(0,) * (x.ndim - 2))]
    apart = x - _per_channel(near, x)
    mean, square = apart.mean(axes), jnp.square(apart).mean(axes)
    # `maximum` keeps nan.
    return near + mean, jnp.maximum(square - jnp.square(mean), 0)


def _normalise_by_batch(
    input: jax.Array, weight: Maybe, bias: Maybe, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The output, mean [c], 1 / standard deviation [c] and biased variance [c]."""
    x = widened(input)
    mean, var = (_moments_at_once if forms.chosen().reads_once else _channel_moments)(x)
    invstd = lax.rsqrt(var + eps)
    scale = scaled(invstd, weight, None)
    shift = -mean * scale if bias is None else widened(bias) - mean * scale
    return x * _per_channel(scale, x) + _per_channel(shift, x), mean, invstd, var


def _normalise_by_running(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    eps: float,
) -> jax.Array:
    if running_mean is None or running_var is None:
        raise NotImplementedError("batch norm: evaluation needs running statistics")
    x = widened(input)
    invstd = lax.rsqrt(_per_channel(running_var, x) + eps)
    shifted = (x - _per_channel(running_mean, x)) * invstd
    return _scaled_per_channel(shifted, weight, bias)


def _moved(running: Maybe, seen: jax.Array, momentum: float) -> Maybe:
    """Running statistics after one batch whose statistics are `seen`."""
    if running is None:
        return None
    moved = (1 - momentum) * widened(running) + momentum * seen
    return moved.astype(running.dtype)


def _unbiased(var: jax.Array, input: jax.Array) -> jax.Array:
    count = math.prod(input.shape) // max(input.shape[1], 1)
    return var * (count / max(count - 1, 1))


@lowers("aten._native_batch_norm_legit_functional.default", shaped=True)
def native_batch_norm_functional(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Maybe, ...]:
    """Also the running statistics after this batch, as fourth and fifth result."""
    if not training:
        out = _normalise_by_running(input, weight, bias, running_mean, running_var, eps)
        # torch's meta kernel says [c] here, as on cuda; the CPU saves nothing.
        empty = jnp.zeros((0,), saved_dtype(input, weight, running_mean))
        return out.astype(input.dtype), empty, empty, running_mean, running_var
    out, mean, invstd, var = _normalise_by_batch(input, weight, bias, eps)
    new_mean = _moved(running_mean, mean, momentum)
    new_var = _moved(running_var, _unbiased(var, input), momentum)
    dtype = saved_dtype(input, weight, running_mean)
    return out.astype(input.dtype), mean.astype(dtype), invstd.astype(dtype), new_mean, new_var


@lowers("aten.native_batch_norm.default", shaped=True)
def native_batch_norm(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Maybe, ...]:
    # torch writes the running statistics behind the schema's back; who records this row uses
    # _native_batch_norm_legit_functional where they are wanted.
    return native_batch_norm_functional(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )[:3]


@lowers("aten._native_batch_norm_legit_no_training.default", shaped=True)
def native_batch_norm_no_training(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[Maybe, ...]:
    return native_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


@lowers("aten._native_batch_norm_legit.no_stats", shaped=True)
def native_batch_norm_no_stats(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Maybe, ...]:
    return native_batch_norm(input, weight, bias, None, None, training, momentum, eps)


@lowers("aten._batch_norm_with_update_functional.default", shaped=True)
def batch_norm_with_update_functional(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[Maybe, ...]:
    out, mean, invstd, new_mean, new_var = native_batch_norm_functional(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, invstd, jnp.zeros((0,), jnp.uint8), new_mean, new_var


@lowers("aten._batch_norm_no_update.default", shaped=True)
def batch_norm_no_update(
    input: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
) -> tuple[Maybe, ...]:
    out, mean, invstd = native_batch_norm(
        input, weight, bias, running_mean, running_var, False, momentum, eps
    )
    return out, mean, invstd, jnp.zeros((0,), jnp.uint8)


def _statistics(
    x: jax.Array,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
) -> tuple[jax.Array, jax.Array]:
    """Mean and 1 / standard deviation [c] that the forward pass used."""
    if train and save_mean is not None and save_invstd is not None:
        return unrounded(save_mean, x, _channel_axes(x)).reshape(-1), widened(save_invstd)
    if running_mean is None or running_var is None:
        raise NotImplementedError("batch norm backward: no statistics of the forward pass")
    return widened(running_mean), lax.rsqrt(widened(running_var) + eps)


@lowers("aten.native_batch_norm_backward.default")
def native_batch_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    x, grad = widened(input), widened(grad_out)
    axes = _channel_axes(x)
    mean, invstd = _statistics(x, running_mean, running_var, save_mean, save_invstd, train, eps)
    centred = x - _per_channel(mean, x)
    grad_sum, product_sum = grad.sum(axes), (grad * centred).sum(axes)
    scale = _per_channel(scaled(invstd, weight, None), x)
    if train:
        count = max(math.prod(x.shape) // max(x.shape[1], 1), 1)
        slope = product_sum * invstd * invstd / count
        shift = _per_channel(grad_sum / count, x)
        grad_input = (grad - shift - centred * _per_channel(slope, x)) * scale
    else:
        grad_input = grad * scale
    results = grad_input, product_sum * invstd, grad_sum
    return tuple(one if asked else None for one, asked in zip(results, output_mask))  # type: ignore[return-value]


@lowers("aten.batch_norm_backward.default")
def batch_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: jax.Array,
) -> tuple[Maybe, Maybe, Maybe]:
    # `save_var` holds 1 / standard deviation, as `save_invstd` does.
    running = (running_mean, running_var, save_mean, save_var)
    return native_batch_norm_backward(grad_out, input, weight, *running, update, eps, output_mask)

"""Normalisation: batch, layer, group, RMS and weight norms, forward and backward.

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

_Maybe = jax.Array | None


def _moments(x: jax.Array, axes: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance over `axes`, which are kept with size 1."""
    mean = x.mean(axes, keepdims=True)
    return mean, jnp.square(x - mean).mean(axes, keepdims=True)


def _saved_dtype(input: jax.Array, *others: _Maybe) -> jnp.dtype:
    """The dtype of the parameters, where there are any."""
    return next((other.dtype for other in others if other is not None), input.dtype)


def _unrounded(mean: jax.Array, x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """The mean of `x` over `axes`, kept with size 1; `mean` is what the forward pass saved of it.

    Half precision rounds that, which would shift every normalised value where the mean is large.
    """
    if mean.dtype != x.dtype:
        return x.mean(axes, keepdims=True)
    return mean.reshape([1 if i in axes else n for i, n in enumerate(x.shape)])


def _scaled(x: jax.Array, weight: _Maybe, bias: _Maybe) -> jax.Array:
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


def _scaled_per_channel(x: jax.Array, weight: _Maybe, bias: _Maybe) -> jax.Array:
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
    input: jax.Array, weight: _Maybe, bias: _Maybe, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The output, mean [c], 1 / standard deviation [c] and biased variance [c]."""
    x = widened(input)
    mean, var = (_moments_at_once if forms.chosen().reads_once else _channel_moments)(x)
    invstd = lax.rsqrt(var + eps)
    scale = _scaled(invstd, weight, None)
    shift = -mean * scale if bias is None else widened(bias) - mean * scale
    return x * _per_channel(scale, x) + _per_channel(shift, x), mean, invstd, var


def _normalise_by_running(
    input: jax.Array,
    weight: _Maybe,
    bias: _Maybe,
    running_mean: _Maybe,
    running_var: _Maybe,
    eps: float,
) -> jax.Array:
    if running_mean is None or running_var is None:
        raise NotImplementedError("batch norm: evaluation needs running statistics")
    x = widened(input)
    invstd = lax.rsqrt(_per_channel(running_var, x) + eps)
    shifted = (x - _per_channel(running_mean, x)) * invstd
    return _scaled_per_channel(shifted, weight, bias)


def _moved(running: _Maybe, seen: jax.Array, momentum: float) -> _Maybe:
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
    weight: _Maybe,
    bias: _Maybe,
    running_mean: _Maybe,
    running_var: _Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[_Maybe, ...]:
    """Also the running statistics after this batch, as fourth and fifth result."""
    if not training:
        out = _normalise_by_running(input, weight, bias, running_mean, running_var, eps)
        # torch's meta kernel says [c] here, as on cuda; the CPU saves nothing.
        empty = jnp.zeros((0,), _saved_dtype(input, weight, running_mean))
        return out.astype(input.dtype), empty, empty, running_mean, running_var
    out, mean, invstd, var = _normalise_by_batch(input, weight, bias, eps)
    new_mean = _moved(running_mean, mean, momentum)
    new_var = _moved(running_var, _unbiased(var, input), momentum)
    dtype = _saved_dtype(input, weight, running_mean)
    return out.astype(input.dtype), mean.astype(dtype), invstd.astype(dtype), new_mean, new_var


@lowers("aten.native_batch_norm.default", shaped=True)
def native_batch_norm(
    input: jax.Array,
    weight: _Maybe,
    bias: _Maybe,
    running_mean: _Maybe,
    running_var: _Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[_Maybe, ...]:
    # torch writes the running statistics behind the schema's back; who records this row uses
    # _native_batch_norm_legit_functional where they are wanted.
    return native_batch_norm_functional(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )[:3]


@lowers("aten._native_batch_norm_legit_no_training.default", shaped=True)
def native_batch_norm_no_training(
    input: jax.Array,
    weight: _Maybe,
    bias: _Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[_Maybe, ...]:
    return native_batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


@lowers("aten._native_batch_norm_legit.no_stats", shaped=True)
def native_batch_norm_no_stats(
    input: jax.Array,
    weight: _Maybe,
    bias: _Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[_Maybe, ...]:
    return native_batch_norm(input, weight, bias, None, None, training, momentum, eps)


@lowers("aten._batch_norm_with_update_functional.default", shaped=True)
def batch_norm_with_update_functional(
    input: jax.Array,
    weight: _Maybe,
    bias: _Maybe,
    running_mean: jax.Array,
    running_var: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[_Maybe, ...]:
    out, mean, invstd, new_mean, new_var = native_batch_norm_functional(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, invstd, jnp.zeros((0,), jnp.uint8), new_mean, new_var


@lowers("aten._batch_norm_no_update.default", shaped=True)
def batch_norm_no_update(
    input: jax.Array,
    weight: _Maybe,
    bias: _Maybe,
    running_mean: _Maybe,
    running_var: _Maybe,
    momentum: float,
    eps: float,
) -> tuple[_Maybe, ...]:
    out, mean, invstd = native_batch_norm(
        input, weight, bias, running_mean, running_var, False, momentum, eps
    )
    return out, mean, invstd, jnp.zeros((0,), jnp.uint8)


def _statistics(
    x: jax.Array,
    running_mean: _Maybe,
    running_var: _Maybe,
    save_mean: _Maybe,
    save_invstd: _Maybe,
    train: bool,
    eps: float,
) -> tuple[jax.Array, jax.Array]:
    """Mean and 1 / standard deviation [c] that the forward pass used."""
    if train and save_mean is not None and save_invstd is not None:
        return _unrounded(save_mean, x, _channel_axes(x)).reshape(-1), widened(save_invstd)
    if running_mean is None or running_var is None:
        raise NotImplementedError("batch norm backward: no statistics of the forward pass")
    return widened(running_mean), lax.rsqrt(widened(running_var) + eps)


@lowers("aten.native_batch_norm_backward.default")
def native_batch_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    weight: _Maybe,
    running_mean: _Maybe,
    running_var: _Maybe,
    save_mean: _Maybe,
    save_invstd: _Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[_Maybe, _Maybe, _Maybe]:
    x, grad = widened(input), widened(grad_out)
    axes = _channel_axes(x)
    mean, invstd = _statistics(x, running_mean, running_var, save_mean, save_invstd, train, eps)
    centred = x - _per_channel(mean, x)
    grad_sum, product_sum = grad.sum(axes), (grad * centred).sum(axes)
    scale = _per_channel(_scaled(invstd, weight, None), x)
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
    weight: _Maybe,
    running_mean: _Maybe,
    running_var: _Maybe,
    save_mean: _Maybe,
    save_var: _Maybe,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: jax.Array,
) -> tuple[_Maybe, _Maybe, _Maybe]:
    # `save_var` holds 1 / standard deviation, as `save_invstd` does.
    running = (running_mean, running_var, save_mean, save_var)
    return native_batch_norm_backward(grad_out, input, weight, *running, update, eps, output_mask)


# Layer and RMS norm: statistics over the trailing dimensions `normalized_shape`.


def _trailing_axes(x: jax.Array, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _leading_sum(x: jax.Array, normalized_shape: Sequence[int]) -> jax.Array:
    return x.sum(tuple(range(x.ndim - len(normalized_shape))))


def _scaled_mean(x: jax.Array, weight: _Maybe, axes: Sequence[int]) -> jax.Array:
    """Mean of x * weight over the trailing `axes`, which are kept with size 1.

    XLA would write x * weight out on a CPU to sum it up, where a product with a vector reads x
    alone: a backward pass of 2048 x 512 took 1.27 ms, 0.80 so (2 cores of a Xeon with AVX-512,
    2026-11-29). Elsewhere that is one kernel.
    """
    if weight is None or not forms.chosen().is_host:
        return _scaled(x, weight, None).mean(axes, keepdims=True)
    rows = x.reshape(*x.shape[: axes[0]], -1)
    mean = rows @ widened(weight).reshape(-1) / weight.size
    return mean.reshape(*mean.shape, *(1 for _ in axes))


@lowers("aten.native_layer_norm.default", shaped=True)
def native_layer_norm(
    input: jax.Array,
    normalized_shape: Sequence[int],
    weight: _Maybe,
    bias: _Maybe,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = widened(input)
    mean, var = _moments(x, _trailing_axes(x, normalized_shape))
    rstd = lax.rsqrt(var + eps)
    out = _scaled((x - mean) * rstd, weight, bias).astype(input.dtype)
    dtype = _saved_dtype(input, weight, bias)
    return out, mean.astype(dtype), rstd.astype(dtype)


@lowers("aten.native_layer_norm_backward.default")
def native_layer_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: Sequence[int],
    mean: jax.Array,
    rstd: jax.Array,
    weight: _Maybe,
    bias: _Maybe,
    output_mask: Sequence[bool],
) -> tuple[_Maybe, _Maybe, _Maybe]:
    x, grad, rstd = widened(input), widened(grad_out), widened(rstd)
    axes = _trailing_axes(x, normalized_shape)
    normal = (x - _unrounded(mean, x, axes)) * rstd
    product = grad * normal
    grad_mean, product_mean = (_scaled_mean(part, weight, axes) for part in (grad, product))
    grad_input = rstd * (_scaled(grad, weight, None) - grad_mean - normal * product_mean)
    return (
        grad_input if output_mask[0] else None,
        _leading_sum(product, normalized_shape) if output_mask[1] else None,
        _leading_sum(grad, normalized_shape) if output_mask[2] else None,
    )


@lowers("aten._fused_rms_norm.default")
def fused_rms_norm(
    input: jax.Array, normalized_shape: Sequence[int], weight: _Maybe, eps: float | None
) -> tuple[jax.Array, jax.Array]:
    x = widened(input)
    if eps is None:
        eps = float(jnp.finfo(x.dtype).eps)
    square = jnp.square(x).mean(_trailing_axes(x, normalized_shape), keepdims=True)
    rstd = lax.rsqrt(square + eps)
    return _scaled(x * rstd, weight, None), rstd


@lowers("aten._fused_rms_norm_backward.default")
def fused_rms_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: Sequence[int],
    rstd: jax.Array,
    weight: _Maybe,
    output_mask: Sequence[bool],
) -> tuple[_Maybe, _Maybe]:
    x, grad, rstd = widened(input), widened(grad_out), widened(rstd)
    normal = x * rstd
    product = grad * normal
    product_mean = _scaled_mean(product, weight, _trailing_axes(x, normalized_shape))
    grad_input = rstd * (_scaled(grad, weight, None) - normal * product_mean)
    return (
        grad_input if output_mask[0] else None,
        _leading_sum(product, normalized_shape) if output_mask[1] else None,
    )


# Group norm: statistics over the channels of a group and all positions; x [N, C, HxW].


@lowers("aten.native_group_norm.default", shaped=True)
def native_group_norm(
    input: jax.Array,
    weight: _Maybe,
    bias: _Maybe,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = widened(input).reshape(N, group, C // group, HxW)
    mean, var = _moments(x, (2, 3))
    rstd = lax.rsqrt(var + eps)
    out = ((x - mean) * rstd).reshape(N, C, HxW)
    out = _scaled(out, _channel_column(weight), _channel_column(bias)).reshape(input.shape)
    dtype = _saved_dtype(input, weight, bias)
    mean, rstd = (s.reshape(N, group).astype(dtype) for s in (mean, rstd))
    return out.astype(input.dtype), mean, rstd


def _channel_column(values: _Maybe) -> _Maybe:
    return None if values is None else values.reshape(-1, 1)


@lowers("aten.native_group_norm_backward.default")
def native_group_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    weight: _Maybe,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[_Maybe, _Maybe, _Maybe]:
    grouped = (N, group, C // group, HxW)
    x, grad = widened(input).reshape(grouped), widened(grad_out).reshape(grouped)
    rstd = widened(rstd).reshape(N, group, 1, 1)
    normal = (x - _unrounded(mean, x, (2, 3))) * rstd
    # Per channel first: both what the group has in common and the parameters' are sums of these.
    sums = grad.sum(3), (grad * normal).sum(3)
    scale = None if weight is None else widened(weight).reshape(grouped[1:3])
    count = max(C // group * HxW, 1)
    grad_mean, product_mean = (
        _scaled(x, scale, None).sum(2)[..., None, None] / count for x in sums
    )
    inner = _scaled(grad, None if scale is None else scale[..., None], None)
    grad_input = (rstd * (inner - grad_mean - normal * product_mean)).reshape(input.shape)
    of_channels = [part.sum(0).reshape(C) for part in sums]
    results = grad_input, of_channels[1], of_channels[0]
    return tuple(one if asked else None for one, asked in zip(results, output_mask))  # type: ignore[return-value]

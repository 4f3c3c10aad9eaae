"""Convolutions of 1, 2 and 3 spatial dimensions, forward and backward.

Everything is said by three functions of the direct convolution: its value, its gradient by the
input and its gradient by the weight. A transposed convolution is the input gradient of a direct
one, so it needs no fourth. Each of the three has four forms, chosen by shapes alone: a matmul for
1x1 kernels, a sum of shifted products for depthwise kernels, one convolution per group, and XLA's
own convolution. XLA's CPU backend needs the first three: its grouped convolutions are 10 to 100
times slower than the sums and the parts.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops.table import lowers

# Above this many taps a depthwise convolution is left to XLA: each tap is one more operand of a
# fused loop.
_MOST_TAPS = 64
# Above this many groups the program would grow too long.
_MOST_GROUPS = 64
_LAYOUTS = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}


@dataclass(frozen=True, slots=True)
class _Window:
    """How the kernel walks: one number per spatial dimension, and the number of groups.

    `high` is the padding at the end of each dimension; negative where a transposed convolution
    has more output padding than padding.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def one_group(self) -> "_Window":
        return replace(self, groups=1)


def _window(
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int] = (0,),
) -> _Window:
    rank = weight.ndim - 2

    def each(sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(sizes) * rank if len(sizes) == 1 else tuple(sizes)

    low = each(padding)
    high = tuple(p - extra for p, extra in zip(low, each(output_padding)))
    return _Window(each(stride), low, high, each(dilation), groups)


def _is_pointwise(kernel: Sequence[int], window: _Window) -> bool:
    return math.prod(kernel) == 1 and window.groups == 1 and not any(window.padding + window.high)


def _is_depthwise(weight_shape: Sequence[int], window: _Window) -> bool:
    """One input channel per group, and few enough taps to write them out."""
    return weight_shape[1] == 1 and math.prod(weight_shape[2:]) <= _MOST_TAPS


def _is_split(window: _Window) -> bool:
    return 1 < window.groups <= _MOST_GROUPS


def _direct(x: jax.Array, w: jax.Array, window: _Window) -> jax.Array:
    """x [n, c, *in], w [o, c / groups, *kernel] -> [n, o, *out]."""
    if _is_pointwise(w.shape[2:], window):
        return _pointwise(x, w, window)
    if _is_depthwise(w.shape, window):
        return _depthwise(x, w, window)
    if _is_split(window):
        parts = zip(_split(x, 1, window), _split(w, 0, window))
        return jnp.concatenate([_direct(a, b, window.one_group()) for a, b in parts], 1)
    return _native(x, w, window, _wide(x.dtype))


def _input_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: _Window
) -> jax.Array:
    """The gradient of the direct convolution by its input, which has `shape`."""
    if _is_pointwise(w.shape[2:], window):
        return _transposed(lambda x: _pointwise(x, w, window), grad, shape)
    if _is_depthwise(w.shape, window):
        return _depthwise_input_gradient(grad, w, shape, window)
    if _is_split(window):
        part = (shape[0], shape[1] // window.groups, *shape[2:])
        parts = zip(_split(grad, 1, window), _split(w, 0, window))
        one = window.one_group()
        return jnp.concatenate([_input_gradient(g, b, part, one) for g, b in parts], 1)
    return _transposed(lambda x: _native(x, w, window), grad, shape)


def _weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: _Window
) -> jax.Array:
    """The gradient of the direct convolution by its weight, which has `shape`."""
    if _is_pointwise(shape[2:], window):
        return _pointwise_weight_gradient(grad, x, shape, window)
    if _is_depthwise(shape, window):
        return _depthwise_weight_gradient(grad, x, shape, window)
    if _is_split(window):
        part = (shape[0] // window.groups, *shape[1:])
        parts = zip(_split(grad, 1, window), _split(x, 1, window))
        one = window.one_group()
        return jnp.concatenate([_weight_gradient(g, a, part, one) for g, a in parts], 0)
    return _transposed(lambda w: _native(x, w, window), grad, shape)


def _split(array: jax.Array, axis: int, window: _Window) -> list[jax.Array]:
    return jnp.split(array, window.groups, axis)


def _transposed(
    linear: Callable[[jax.Array], jax.Array], grad: jax.Array, shape: Sequence[int]
) -> jax.Array:
    """The transpose of a linear function of one array of `shape`, at `grad`."""
    return jax.linear_transpose(linear, jax.ShapeDtypeStruct(tuple(shape), grad.dtype))(grad)[0]


def _native(
    x: jax.Array, w: jax.Array, window: _Window, accumulate: jnp.dtype | None = None
) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        w,
        window.stride,
        list(zip(window.padding, window.high)),
        rhs_dilation=window.dilation,
        dimension_numbers=_LAYOUTS[len(window.stride)],
        feature_group_count=window.groups,
        preferred_element_type=accumulate,
    )


def _pointwise(x: jax.Array, w: jax.Array, window: _Window) -> jax.Array:
    kernel = w.reshape(w.shape[:2])
    return jnp.einsum("nc...,oc->no...", _strided(x, window), kernel)


def _pointwise_weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: _Window
) -> jax.Array:
    # One matmul per sample and a sum: contracting samples and positions at once would make XLA
    # copy both operands into another order first.
    grad = grad.reshape(*grad.shape[:2], -1)
    x = _strided(x, window).reshape(grad.shape[0], x.shape[1], -1)
    product = jnp.einsum("nop,ncp->noc", grad, x, preferred_element_type=_wide(x.dtype))
    return product.sum(0).astype(grad.dtype).reshape(shape)


def _strided(x: jax.Array, window: _Window) -> jax.Array:
    return lax.slice(x, (0,) * x.ndim, x.shape, (1, 1, *window.stride))


def _wide(dtype: jnp.dtype) -> jnp.dtype:
    """In which dtype sums of `dtype` are accumulated."""
    return jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else dtype


# Depthwise: each input channel has `m` output channels of its own, o = c * m.


def _padded(x: jax.Array, low: Sequence[int], high: Sequence[int]) -> jax.Array:
    """`x` [n, c, *sizes] grown, or cropped where a number is negative."""
    config = [(0, 0, 0), (0, 0, 0), *((a, b, 0) for a, b in zip(low, high))]
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _taps(
    x: jax.Array, kernel: Sequence[int], out: Sequence[int], window: _Window
) -> Iterator[tuple[tuple[int, ...], jax.Array]]:
    """What each position of the kernel sees of the padded `x`: [n, c, *out]."""
    for tap in itertools.product(*map(range, kernel)):
        start = [t * d for t, d in zip(tap, window.dilation)]
        limit = [a + (n - 1) * s + 1 for a, n, s in zip(start, out, window.stride)]
        yield tap, lax.slice(x, (0, 0, *start), (*x.shape[:2], *limit), (1, 1, *window.stride))


def _out_sizes(sizes: Sequence[int], kernel: Sequence[int], window: _Window) -> list[int]:
    return [
        (n + p + h - d * (k - 1) - 1) // s + 1
        for n, k, s, p, h, d in zip(
            sizes, kernel, window.stride, window.padding, window.high, window.dilation
        )
    ]


def _depthwise(x: jax.Array, w: jax.Array, window: _Window) -> jax.Array:
    n, c, *sizes = x.shape
    kernel = w.shape[2:]
    out = _out_sizes(sizes, kernel, window)
    x = _padded(x, window.padding, window.high).astype(_wide(x.dtype))
    per_channel = w.reshape(c, -1, *kernel)
    ones = (1,) * len(out)
    shares = [
        seen[:, :, None] * per_channel[(..., *tap)].reshape(c, -1, *ones)
        for tap, seen in _taps(x, kernel, out, window)
    ]
    return functools.reduce(jnp.add, shares).reshape(n, -1, *out)


def _depthwise_input_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: _Window
) -> jax.Array:
    n, c, *sizes = shape
    kernel = w.shape[2:]
    grad = grad.reshape(n, c, -1, *grad.shape[2:])
    if grad.shape[2] == 1 and set(window.stride) == {1}:
        # The gradient of one channel by another is the same convolution with the kernel reversed.
        reach = [d * (k - 1) for d, k in zip(window.dilation, kernel)]
        low = tuple(r - p for r, p in zip(reach, window.padding))
        high = tuple(r - p for r, p in zip(reach, window.high))
        back = replace(window, padding=low, high=high)
        return _depthwise(grad[:, :, 0], jnp.flip(w, range(2, w.ndim)), back).astype(w.dtype)
    per_channel = w.reshape(c, -1, math.prod(kernel))
    per_tap = jnp.einsum(
        "ncm...,cmt->tnc...", grad, per_channel, preferred_element_type=_wide(w.dtype)
    )
    padded = [n + p + h for n, p, h in zip(sizes, window.padding, window.high)]
    starts = itertools.product(*map(range, kernel))
    shares = [_placed(g, t, padded, window) for t, g in zip(starts, per_tap)]
    spread = functools.reduce(jnp.add, shares)
    spread = _padded(spread, [-p for p in window.padding], [-h for h in window.high])
    return spread.astype(w.dtype)


def _placed(
    grad: jax.Array, tap: Sequence[int], padded: Sequence[int], window: _Window
) -> jax.Array:
    """`grad` [n, c, *out] at the positions of an input of `padded` sizes that `tap` saw."""
    config = [(0, 0, 0), (0, 0, 0)]
    for size, out, t, s, d in zip(padded, grad.shape[2:], tap, window.stride, window.dilation):
        config.append((t * d, size - t * d - (out - 1) * s - 1, s - 1))
    return lax.pad(grad, jnp.zeros((), grad.dtype), config)


def _depthwise_weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: _Window
) -> jax.Array:
    n, c, *_ = x.shape
    out = grad.shape[2:]
    x = _padded(x, window.padding, window.high)
    grad = grad.reshape(n, c, -1, *out)
    if grad.shape[2] == 1:
        axes = (0, *range(2, x.ndim))
        wide = grad[:, :, 0].astype(_wide(grad.dtype))
        sums = [(wide * seen).sum(axes) for _, seen in _taps(x, shape[2:], out, window)]
        return jnp.stack(sums, -1).astype(x.dtype).reshape(shape)
    seen = jnp.stack([seen for _, seen in _taps(x, shape[2:], out, window)], 2)
    positions = math.prod(out)
    seen = seen.reshape(n, c, -1, positions)
    grad = grad.reshape(n, c, -1, positions)
    product = jnp.einsum("ncmp,nctp->ncmt", grad, seen, preferred_element_type=_wide(x.dtype))
    return product.sum(0).astype(x.dtype).reshape(shape)


# The ATen overloads.


@lowers("aten.convolution.default", "aten.convolution_overrideable.default")
def convolution(
    input: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    window = _window(weight, stride, padding, dilation, groups, _extra(transposed, output_padding))
    dtype = input.dtype
    if input.size == 0 or weight.size == 0:
        out = jnp.zeros(_result_shape(input, weight, window, transposed), input.dtype)
    elif transposed:
        if bias is not None:
            # So that half precision is rounded once, after the bias.
            input, weight = input.astype(_wide(input.dtype)), weight.astype(_wide(weight.dtype))
        shape = _result_shape(input, weight, window, True)
        out = _input_gradient(input, weight, shape, window)
    else:
        out = _direct(input, weight, window)
    if bias is not None:
        out = out + bias.reshape(-1, *(1,) * (out.ndim - 2))
    return out.astype(dtype)


def _extra(transposed: bool, output_padding: Sequence[int]) -> Sequence[int]:
    # torch ignores the output padding of a direct convolution.
    return output_padding if transposed else (0,)


def _result_shape(
    input: jax.Array, weight: jax.Array, window: _Window, transposed: bool
) -> tuple[int, ...]:
    sizes, kernel = input.shape[2:], weight.shape[2:]
    if not transposed:
        return (input.shape[0], weight.shape[0], *_out_sizes(sizes, kernel, window))
    grown = [
        (n - 1) * s - p - h + d * (k - 1) + 1
        for n, k, s, p, h, d in zip(
            sizes, kernel, window.stride, window.padding, window.high, window.dilation
        )
    ]
    return (input.shape[0], weight.shape[1] * window.groups, *grown)


@lowers("aten.convolution_backward.default")
def convolution_backward(
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    window = _window(weight, stride, padding, dilation, groups, _extra(transposed, output_padding))
    grad_input = grad_weight = grad_bias = None
    empty = grad_output.size == 0 or input.size == 0 or weight.size == 0
    if output_mask[0] and not empty:
        if transposed:
            grad_input = _direct(grad_output, weight, window).astype(input.dtype)
        else:
            grad_input = _input_gradient(grad_output, weight, input.shape, window)
    if output_mask[1] and not empty:
        seen, made = (grad_output, input) if transposed else (input, grad_output)
        grad_weight = _weight_gradient(made, seen, weight.shape, window)
    if output_mask[2]:
        axes = (0, *range(2, grad_output.ndim))
        sums = grad_output.sum(axes, dtype=_wide(grad_output.dtype))
        grad_bias = sums.astype(grad_output.dtype)
    if empty:
        grad_input = jnp.zeros_like(input) if output_mask[0] else None
        grad_weight = jnp.zeros_like(weight) if output_mask[1] else None
    return grad_input, grad_weight, grad_bias


@lowers("aten.convolution_backward_overrideable.default")
def convolution_backward_overrideable(
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    rest = (stride, padding, dilation, transposed, output_padding, groups, output_mask)
    return convolution_backward(grad_output, input, weight, None, *rest)


@lowers("aten._slow_conv2d_forward.default", "aten.slow_conv3d_forward.default")
def slow_conv(
    self: jax.Array,
    weight: jax.Array,
    kernel_size: Sequence[int],
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
) -> jax.Array:
    ones = (1,) * len(stride)
    return convolution(self, weight, bias, stride, padding, ones, False, (0,), 1)


@lowers("aten.conv_depthwise3d.default", "aten._conv_depthwise2d.default")
def depthwise_conv(
    self: jax.Array,
    weight: jax.Array,
    kernel_size: Sequence[int],
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> jax.Array:
    groups = self.shape[1]
    return convolution(self, weight, bias, stride, padding, dilation, False, (0,), groups)

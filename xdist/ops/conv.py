"""Convolutions of 1, 2 and 3 spatial dimensions, forward and backward.

Everything is said by three functions of the direct convolution: its value, its gradient by the
input and its gradient by the weight. A transposed convolution is the input gradient of a direct
one, so it needs no fourth. Each of the three has four forms, chosen by shapes alone: a matmul for
1x1 kernels, sums of shifted products for groups of few channels, one convolution per group, and
XLA's own convolution (of planes; volumes are turned into them). XLA's CPU backend needs the others:
its grouped convolutions are 10 to 100 times slower than the sums and the parts. There the gradients
have forms of their own, which `conv_rules.py` chooses. On GPUs 1x1 kernels over planes are cuDNN's
too: products would have channels first where cuDNN has them last, and transposes around each. TPUs
have XLA's grouped convolutions: they write out each of the shifted products and parts.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops import conv_grouped, conv_rules, conv_turned, forms
from torch_xdist.ops.conv_columns import gathered_weight_gradient, spread_input_gradient
from torch_xdist.ops.conv_forms import (
    Window,
    has_no_kernel,
    native,
    out_sizes,
    pointwise,
    pointwise_weight_gradient,
    transpose_of,
)
from torch_xdist.ops.conv_phases import input_gradient_by_phases
from torch_xdist.ops.conv_shifts import (
    by_shifts,
    depthwise_weight_gradient,
    input_gradient_by_shifts,
    spread_depthwise_gradient,
    weight_gradient_by_shifts,
)
from torch_xdist.ops.operands import wide
from torch_xdist.ops.settled import settled
from torch_xdist.ops.table import lowers

# From two arrays, the shape of the result and the window.
_Gradient = Callable[[jax.Array, jax.Array, Sequence[int], Window], jax.Array]


def _window(
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int] = (0,),
) -> Window:
    rank = weight.ndim - 2

    def each(sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(sizes) * rank if len(sizes) == 1 else tuple(sizes)

    low = each(padding)
    high = tuple(p - extra for p, extra in zip(low, each(output_padding)))
    return Window(each(stride), low, high, each(dilation), groups)


def _is_pointwise(kernel: Sequence[int], window: Window, dtype: jnp.dtype) -> bool:
    """Whether it is one product, and better so."""
    is_product = math.prod(kernel) == 1 and window.groups == 1
    return is_product and not any(window.padding + window.high) and not _is_cudnns(dtype, window)


def _is_cudnns(dtype: jnp.dtype, window: Window) -> bool:
    """Whether cuDNN computes it: convolutions of planes, of no integers."""
    is_plane = len(window.stride) == 2 and window.groups == 1
    return forms.chosen().has_cudnn and is_plane and jnp.issubdtype(dtype, jnp.floating)


def _is_split(window: Window) -> bool:
    return 1 < window.groups <= conv_rules.MOST_GROUPS and not forms.chosen().writes_out_taps


def _rounded(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """The direct convolution in the dtype of `x`, to which half precision is rounded once."""
    if _is_cudnns(x.dtype, window) and x.dtype == w.dtype:
        # cuDNN sums halves in float32 and rounds them itself. Asked for float32, JAX would widen
        # what it is given as well.
        return native(x, w, window)
    return _direct(x, w, window).astype(x.dtype)


def _direct(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """x [n, c, *in], w [o, c / groups, *kernel] -> [n, o, *out]; halves are not rounded yet."""
    if _is_pointwise(w.shape[2:], window, x.dtype):
        return pointwise(x, w, window, wide(x.dtype))
    if conv_rules.is_by_shifts(w.shape, window):
        return settled(by_shifts(x, w, window))
    shape = (len(x), len(w), *out_sizes(x.shape[2:], w.shape[2:], window))
    if conv_rules.is_one_product(shape, w.shape, window):
        return conv_grouped.direct(x, w, window)
    if _is_split(window):
        parts = zip(_split(x, 1, window), _split(w, 0, window))
        return jnp.concatenate([_direct(a, b, window.one_group()) for a, b in parts], 1)
    if conv_rules.is_turned(shape, w.shape, window) and not has_no_kernel(x.dtype):
        return lax.platform_dependent(
            x,
            w,
            cpu=lambda x, w: conv_turned.direct(x, w, window, wide(x.dtype)),
            default=lambda x, w: native(x, w, window, wide(x.dtype)),
        )
    return native(x, w, window, wide(x.dtype))


def _input_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """The gradient of the direct convolution by its input, which has `shape`."""
    if _is_pointwise(w.shape[2:], window, grad.dtype):
        return transpose_of(lambda x: pointwise(x, w, window), grad, shape)
    if conv_rules.is_gradient_by_shifts(w.shape, window):
        return settled(input_gradient_by_shifts(grad, w, shape, window))
    if conv_rules.is_depthwise(w.shape, window):
        return settled(spread_depthwise_gradient(grad, w, shape, window))
    if conv_rules.is_one_product(grad.shape, w.shape, window):
        return conv_grouped.input_gradient(grad, w, shape, window)
    if _is_split(window):
        part = (shape[0], shape[1] // window.groups, *shape[2:])
        parts = zip(_split(grad, 1, window), _split(w, 0, window))
        one = window.one_group()
        return jnp.concatenate([_input_gradient(g, b, part, one) for g, b in parts], 1)
    form = INPUT_GRADIENTS[conv_rules.input_gradient(grad.shape, w.shape, window)]
    return _on_cpu(form, _native_input_gradient, grad, w, shape, window)


def _on_cpu(form: _Gradient, default: _Gradient, *arguments: Any) -> jax.Array:
    """One form of a gradient on CPUs, another elsewhere."""
    if form is default:
        return default(*arguments)
    *arrays, shape, window = arguments
    return lax.platform_dependent(
        *arrays,
        cpu=lambda *arrays: form(*arrays, shape, window),
        default=lambda *arrays: default(*arrays, shape, window),
    )


def _native_input_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    dtype = grad.dtype
    if len(window.stride) == 3:
        # A volume's is a sum over planes: half precision is rounded once, after it.
        grad, w = grad.astype(wide(dtype)), w.astype(wide(dtype))
    return transpose_of(lambda x: native(x, w, window), grad, shape).astype(dtype)


def _weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """The gradient of the direct convolution by its weight, which has `shape`."""
    if _is_pointwise(shape[2:], window, x.dtype):
        return pointwise_weight_gradient(grad, x, shape, window)
    if conv_rules.is_weight_gradient_by_shifts(shape, window):
        return _walked_weight_gradient(grad, x, tuple(shape), window)
    return _differentiable_weight_gradient(grad, x, shape, window)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _walked_weight_gradient(
    grad: jax.Array, x: jax.Array, shape: tuple[int, ...], window: Window
) -> jax.Array:
    """By shifts, for whose one walk JAX has no derivative."""
    return weight_gradient_by_shifts(grad, x, shape, window)


@_walked_weight_gradient.defjvp
def _of_both(
    shape: tuple[int, ...], window: Window, operands: Any, tangents: Any
) -> tuple[jax.Array, jax.Array]:
    (grad, x), (more_grad, more_x) = operands, tangents
    by_grad = _differentiable_weight_gradient(more_grad, x, shape, window)
    by_x = _differentiable_weight_gradient(grad, more_x, shape, window)
    return _walked_weight_gradient(grad, x, shape, window), by_grad + by_x


def _differentiable_weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    # Of one channel in all, XLA's own is faster: 0.2 ms in a step of MNIST, by products 2.
    if conv_rules.is_depthwise(shape, window) and window.groups > 1:
        return depthwise_weight_gradient(grad, x, shape, window)
    if conv_rules.is_one_product(grad.shape, shape, window):
        return conv_grouped.weight_gradient(grad, x, shape, window)
    if _is_split(window):
        part = (shape[0] // window.groups, *shape[1:])
        parts = zip(_split(grad, 1, window), _split(x, 1, window))
        one = window.one_group()
        return jnp.concatenate([_weight_gradient(g, a, part, one) for g, a in parts], 0)
    if has_no_kernel(x.dtype):
        return _native_weight_gradient(grad, x, shape, window)
    form = WEIGHT_GRADIENTS[conv_rules.weight_gradient(grad.shape, shape, window)]
    return _on_cpu(form, _native_weight_gradient, grad, x, shape, window)


def _native_weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    return transpose_of(lambda w: native(x, w, window), grad, shape)


def _split(array: jax.Array, axis: int, window: Window) -> list[jax.Array]:
    return jnp.split(array, window.groups, axis)


INPUT_GRADIENTS: dict[str, _Gradient] = {
    "phases": input_gradient_by_phases,
    "columns": spread_input_gradient,
    "native": _native_input_gradient,
}
WEIGHT_GRADIENTS: dict[str, _Gradient] = {
    "columns": gathered_weight_gradient,
    "turned": conv_turned.weight_gradient,
    "native": _native_weight_gradient,
}


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
            input, weight = input.astype(wide(input.dtype)), weight.astype(wide(weight.dtype))
        shape = _result_shape(input, weight, window, True)
        out = _input_gradient(input, weight, shape, window)
    elif bias is None:
        out = _rounded(input, weight, window)
    else:
        out = _direct(input, weight, window)
    if bias is not None:
        out = out + bias.reshape(-1, *(1,) * (out.ndim - 2))
    return out.astype(dtype)


def _extra(transposed: bool, output_padding: Sequence[int]) -> Sequence[int]:
    # torch ignores the output padding of a direct convolution.
    return output_padding if transposed else (0,)


def _result_shape(
    input: jax.Array, weight: jax.Array, window: Window, transposed: bool
) -> tuple[int, ...]:
    sizes, kernel = input.shape[2:], weight.shape[2:]
    if not transposed:
        return (input.shape[0], weight.shape[0], *out_sizes(sizes, kernel, window))
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
    # Up to three gradients read it, two of them in an order of their own.
    grad_output = settled(grad_output)
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
        sums = grad_output.sum(axes, dtype=wide(grad_output.dtype))
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

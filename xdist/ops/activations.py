"""Activation functions and their gradients.

A forward row sees one operand and gives one array of its shape. A backward row takes the gradient
of the result first. Few of the backward operators are promoted by torch, so those see halves
through `opmath`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from torch_xdist.ops.operands import Number, opmath, scalar
from torch_xdist.ops.table import add_rows, lowers

_INVERSE_ROOT_2 = 1 / math.sqrt(2.0)
_TANH_SCALE = math.sqrt(2.0 / np.pi)
_TANH_CUBE = 0.044715


@lowers("aten.relu.default")
def relu(self: jax.Array) -> jax.Array:
    return jnp.maximum(self, jnp.zeros((), self.dtype))


@lowers("aten.threshold.default")
def threshold(self: jax.Array, threshold: Number, value: Number) -> jax.Array:
    return jnp.where(self <= scalar(threshold, self), scalar(value, self), self)


@lowers("aten.threshold_backward.default")
def threshold_backward(grad_output: jax.Array, self: jax.Array, threshold: Number) -> jax.Array:
    return jnp.where(self <= scalar(threshold, self), jnp.zeros((), self.dtype), grad_output)


@lowers("aten.hardtanh.default")
def hardtanh(self: jax.Array, min_val: Number = -1, max_val: Number = 1) -> jax.Array:
    return jnp.clip(self, scalar(min_val, self), scalar(max_val, self))


@lowers("aten.hardtanh_backward.default")
@opmath
def hardtanh_backward(
    grad_output: jax.Array, self: jax.Array, min_val: Number, max_val: Number
) -> jax.Array:
    outside = (self <= scalar(min_val, self)) | (self >= scalar(max_val, self))
    return jnp.where(outside, 0, grad_output)


@lowers("aten.gelu.default")
def gelu(self: jax.Array, *, approximate: str = "none") -> jax.Array:
    # torch defaults to the exact erf form, jax.nn.gelu to the tanh form.
    if approximate == "tanh":
        inner = _TANH_SCALE * (self + _TANH_CUBE * self * self * self)
        return 0.5 * self * (1 + jnp.tanh(inner))
    return self * 0.5 * (1 + jax.lax.erf(self * _INVERSE_ROOT_2))


@lowers("aten.gelu_backward.default")
def gelu_backward(
    grad_output: jax.Array, self: jax.Array, *, approximate: str = "none"
) -> jax.Array:
    if approximate == "tanh":
        square = self * self
        tanh = jnp.tanh(_TANH_SCALE * (self + _TANH_CUBE * square * self))
        slope = _TANH_SCALE * (1 + 3 * _TANH_CUBE * square)
        return grad_output * (0.5 * (1 + tanh) + 0.5 * self * (1 - tanh * tanh) * slope)
    cumulative = 0.5 * (1 + jax.lax.erf(self * _INVERSE_ROOT_2))
    density = jnp.exp(self * self * -0.5) * (_TANH_SCALE * 0.5)
    return grad_output * (cumulative + self * density)


@lowers("aten.tanh_backward.default")
def tanh_backward(grad_output: jax.Array, output: jax.Array) -> jax.Array:
    return grad_output * jnp.conj(1 - output * output)


@lowers("aten.sigmoid_backward.default")
def sigmoid_backward(grad_output: jax.Array, output: jax.Array) -> jax.Array:
    return grad_output * jnp.conj((1 - output) * output)


@lowers("aten.silu.default")
def silu(self: jax.Array) -> jax.Array:
    return self / (1 + jnp.exp(-self))


@lowers("aten.silu_backward.default")
def silu_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    sigmoid = jax.nn.sigmoid(self)
    return grad_output * sigmoid * (1 + self * (1 - sigmoid))


@lowers("aten.mish.default")
def mish(self: jax.Array) -> jax.Array:
    return self * jnp.tanh(jnp.log1p(jnp.exp(self)))


@lowers("aten.mish_backward.default")
@opmath
def mish_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    tanh = jnp.tanh(jax.nn.softplus(self))
    return grad_output * (tanh + self * jax.nn.sigmoid(self) * (1 - tanh * tanh))


@lowers("aten.elu.default")
def elu(
    self: jax.Array, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> jax.Array:
    alpha, scale, input_scale = (scalar(number, self) for number in (alpha, scale, input_scale))
    negative = alpha * scale * jnp.expm1(jnp.minimum(self, 0) * input_scale)
    return jnp.where(self > 0, self * scale, jnp.where(self != self, self, negative))


@lowers("aten.elu_backward.default")
@opmath
def elu_backward(
    grad_output: jax.Array,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: jax.Array,
) -> jax.Array:
    x = self_or_result
    alpha, scale, input_scale = (scalar(number, x) for number in (alpha, scale, input_scale))
    below = x + alpha * scale if is_result else alpha * scale * jnp.exp(x * input_scale)
    return grad_output * jnp.where(x > 0, scale, below * input_scale)


@lowers("aten.celu.default")
def celu(self: jax.Array, alpha: Number = 1.0) -> jax.Array:
    return elu(self, alpha, 1, 1 / scalar(alpha, self))


@lowers("aten.leaky_relu.default")
def leaky_relu(self: jax.Array, negative_slope: Number = 0.01) -> jax.Array:
    return jnp.where(self > 0, self, self * scalar(negative_slope, self))


@lowers("aten.leaky_relu_backward.default")
@opmath
def leaky_relu_backward(
    grad_output: jax.Array, self: jax.Array, negative_slope: Number, self_is_result: bool
) -> jax.Array:
    return jnp.where(self > 0, grad_output, grad_output * scalar(negative_slope, self))


@lowers("aten._prelu_kernel.default")
@opmath
def prelu(self: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.where(self > 0, self, weight * self)


@lowers("aten._prelu_kernel_backward.default")
@opmath
def prelu_backward(
    grad_output: jax.Array, self: jax.Array, weight: jax.Array
) -> tuple[jax.Array, jax.Array]:
    positive = self > 0
    by_weight = jnp.where(positive, 0, self * grad_output)
    return jnp.where(positive, grad_output, weight * grad_output), by_weight


@lowers("aten.hardsigmoid.default")
def hardsigmoid(self: jax.Array) -> jax.Array:
    return jnp.clip(self + 3, 0, 6) / 6


@lowers("aten.hardsigmoid_backward.default")
@opmath
def hardsigmoid_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@lowers("aten.hardswish.default")
@opmath
def hardswish(self: jax.Array) -> jax.Array:
    return self * jnp.clip(self + 3, 0, 6) / 6


@lowers("aten.hardswish_backward.default")
@opmath
def hardswish_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    middle = grad_output * (self / 3 + 0.5)
    # A nan goes the way of the middle.
    return jnp.where(self >= 3, grad_output, jnp.where(self <= -3, 0, middle))


@lowers("aten.softplus.default")
def softplus(self: jax.Array, beta: Number = 1, threshold: Number = 20) -> jax.Array:
    beta = scalar(beta, self)
    steep = self * beta
    return jnp.where(steep > scalar(threshold, self), self, jnp.log1p(jnp.exp(steep)) / beta)


@lowers("aten.softplus_backward.default")
@opmath
def softplus_backward(
    grad_output: jax.Array, self: jax.Array, beta: Number, threshold: Number
) -> jax.Array:
    steep = self * scalar(beta, self)
    slope = jnp.where(steep > scalar(threshold, self), 1, jax.nn.sigmoid(steep))
    return grad_output * slope


def _shrunk(self: jax.Array, lambd: Number) -> jax.Array:
    """Where an operand lies within [-lambd, lambd]; a nan does not."""
    width = scalar(lambd, self)
    return (self >= -width) & (self <= width)


@lowers("aten.hardshrink.default")
def hardshrink(self: jax.Array, lambd: Number = 0.5) -> jax.Array:
    return jnp.where(_shrunk(self, lambd), 0, self)


@lowers("aten.softshrink.default")
def softshrink(self: jax.Array, lambd: Number = 0.5) -> jax.Array:
    width = scalar(lambd, self)
    moved = jnp.where(self > width, self - width, jnp.where(self < -width, self + width, 0))
    return jnp.where(self != self, self, moved)


@lowers("aten.hardshrink_backward.default", "aten.softshrink_backward.default")
@opmath
def shrink_backward(grad_out: jax.Array, self: jax.Array, lambd: Number) -> jax.Array:
    return jnp.where(_shrunk(self, lambd), 0, grad_out)


@lowers("aten.log_sigmoid_forward.default")
@opmath
def log_sigmoid_forward(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    buffer = jnp.exp(-jnp.abs(self))
    return jnp.minimum(self, 0) - jnp.log1p(buffer), buffer


@lowers("aten.log_sigmoid_backward.default")
@opmath
def log_sigmoid_backward(grad_output: jax.Array, self: jax.Array, buffer: jax.Array) -> jax.Array:
    return grad_output * jax.nn.sigmoid(-self)


@lowers("aten.glu.default")
@opmath
def glu(self: jax.Array, dim: int = -1) -> jax.Array:
    value, gate = jnp.split(self, 2, axis=dim)
    return value * jax.nn.sigmoid(gate)


@lowers("aten.glu_backward.default")
@opmath
def glu_backward(grad_output: jax.Array, self: jax.Array, dim: int) -> jax.Array:
    value, gate = jnp.split(self, 2, axis=dim)
    sigmoid = jax.nn.sigmoid(gate)
    by_gate = grad_output * value * sigmoid * (1 - sigmoid)
    return jnp.concatenate([grad_output * sigmoid, by_gate], axis=dim)


@lowers("aten.glu_jvp.default")
@opmath
def glu_jvp(glu: jax.Array, x: jax.Array, dx: jax.Array, dim: int) -> jax.Array:
    gate = jnp.split(x, 2, axis=dim)[1]
    dvalue, dgate = jnp.split(dx, 2, axis=dim)
    sigmoid = jax.nn.sigmoid(gate)
    return dvalue * sigmoid + (1 - sigmoid) * dgate * glu


@lowers("aten.logit.default")
def logit(self: jax.Array, eps: float | None = None) -> jax.Array:
    inside = self if eps is None else jnp.clip(self, eps, 1 - eps)
    return jnp.log(inside / (1 - inside))


@lowers("aten.logit_backward.default")
def logit_backward(grad_output: jax.Array, self: jax.Array, eps: float | None = None) -> jax.Array:
    slope = grad_output / (self * (1 - self))
    if eps is None:
        return jnp.where((self < 0) | (self > 1), jnp.nan, slope)
    return jnp.where((self < eps) | (self > 1 - eps), 0, slope)


@lowers("aten.native_dropout_backward.default")
def native_dropout_backward(grad_output: jax.Array, mask: jax.Array, scale: float) -> jax.Array:
    return grad_output * mask.astype(grad_output.dtype) * scale


@lowers("aten.rrelu_with_noise_backward.default")
@opmath
def rrelu_with_noise_backward(
    grad_output: jax.Array,
    self: jax.Array,
    noise: jax.Array,
    lower: Number,
    upper: Number,
    training: bool,
    self_is_result: bool,
) -> jax.Array:
    slope = (scalar(lower, self) + scalar(upper, self)) / 2
    fixed = jnp.where(self > 0, grad_output, grad_output * slope)
    if not training:
        return fixed
    # torch takes a range of slopes narrower than this for a fixed slope.
    random = scalar(upper, self) - scalar(lower, self) > 1e-6
    return jnp.where(random, noise * grad_output, fixed)


def _selu(self: jax.Array) -> jax.Array:
    return elu(self, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


add_rows({"aten.selu.default": _selu, "aten.relu6.default": lambda self: jnp.clip(self, 0, 6)})

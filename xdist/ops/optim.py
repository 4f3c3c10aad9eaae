"""Fused optimizers: one row updates every parameter.

Lists in, lists out, in the order of the functional schema. `lr` and the other numbers are 0-d
arrays or Python numbers. With `found_inf` other than 0 everything keeps its value; gradients are
divided by `grad_scale` before use and returned so.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import widened
from torch_xdist.ops.table import lowers

_Maybe = jax.Array | None
_Arrays = Sequence[jax.Array]


def _scaled(grad: jax.Array, grad_scale: _Maybe) -> jax.Array:
    return grad if grad_scale is None else (grad / grad_scale).astype(grad.dtype)


def _kept(new: jax.Array, old: jax.Array, found_inf: _Maybe) -> jax.Array:
    """`new` in the dtype of `old`, or `old` where the step is to be skipped."""
    new = new.astype(old.dtype)
    return new if found_inf is None else jnp.where(jnp.reshape(found_inf, ()) != 0, old, new)


def _number(value: float | jax.Array, like: jax.Array) -> jax.Array:
    """A scalar in the dtype of the arithmetic, so that float64 does not spread."""
    return jnp.asarray(value).reshape(()).astype(like.dtype)


def _adam(
    self: _Arrays,
    grads: _Arrays,
    exp_avgs: _Arrays,
    exp_avg_sqs: _Arrays,
    max_exp_avg_sqs: _Arrays,
    state_steps: _Arrays,
    *,
    lr: float | jax.Array,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: _Maybe = None,
    found_inf: _Maybe = None,
    decoupled: bool,
) -> tuple[list[jax.Array], ...]:
    outs: tuple[list[jax.Array], ...] = ([], [], [], [], [])
    for i, param in enumerate(self):
        grad = _scaled(grads[i], grad_scale)
        p = widened(param)
        rate, decay, b1, b2, tiny = (_number(v, p) for v in (lr, weight_decay, beta1, beta2, eps))
        g = -widened(grad) if maximize else widened(grad)
        p, g = (p - rate * decay * p, g) if decoupled else (p, g + decay * p)
        m, v = widened(exp_avgs[i]), widened(exp_avg_sqs[i])
        m = m + (1 - b1) * (g - m)
        v = b2 * v + (1 - b2) * g * g
        step = state_steps[i].reshape(()).astype(jnp.float64)
        correction1 = (1 - jnp.power(jnp.float64(beta1), step)).astype(p.dtype)
        correction2 = jnp.sqrt(1 - jnp.power(jnp.float64(beta2), step)).astype(p.dtype)
        seen = v
        if amsgrad:
            seen = jnp.maximum(widened(max_exp_avg_sqs[i]), v)
            outs[4].append(_kept(seen, max_exp_avg_sqs[i], found_inf))
        p = p - rate / correction1 * m / (jnp.sqrt(seen) / correction2 + tiny)
        outs[0].append(_kept(p, param, found_inf))
        outs[1].append(grad)
        outs[2].append(_kept(m, exp_avgs[i], found_inf))
        outs[3].append(_kept(v, exp_avg_sqs[i], found_inf))
    return outs


def _lowered_adam(decoupled: bool) -> Callable[..., tuple[list[jax.Array], ...]]:
    def lowering(*lists: _Arrays, **options: Any) -> tuple[list[jax.Array], ...]:
        return _adam(*lists, **options, decoupled=decoupled)

    return lowering


lowers("aten._fused_adam.default", "aten._fused_adam.tensor_lr")(_lowered_adam(False))
lowers("aten._fused_adamw.default", "aten._fused_adamw.tensor_lr")(_lowered_adam(True))


@lowers("aten._fused_sgd.default", "aten._fused_sgd.tensor_lr")
def fused_sgd(
    self: _Arrays,
    grads: _Arrays,
    momentum_buffer_list: _Arrays,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | jax.Array,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: _Maybe = None,
    found_inf: _Maybe = None,
) -> tuple[list[jax.Array], ...]:
    outs: tuple[list[jax.Array], ...] = ([], [], [])
    for i, param in enumerate(self):
        grad = _scaled(grads[i], grad_scale)
        p = widened(param)
        rate, decay, factor = (_number(v, p) for v in (lr, weight_decay, momentum))
        g = -widened(grad) if maximize else widened(grad)
        g = g + decay * p
        if momentum_buffer_list:
            old = momentum_buffer_list[i]
            damped = (1 - _number(dampening, p)) * g
            moved = g if is_first_step else factor * widened(old) + damped
            outs[2].append(_kept(moved, old, found_inf))
            g = g + factor * moved if nesterov else moved
        outs[0].append(_kept(p - rate * g, param, found_inf))
        outs[1].append(grad)
    return outs


def _adagrad(
    self: _Arrays,
    grads: _Arrays,
    state_sums: _Arrays,
    state_steps: _Arrays,
    *,
    lr: float | jax.Array,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: _Maybe = None,
    found_inf: _Maybe = None,
) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
    outs: tuple[list[jax.Array], ...] = ([], [], [])
    for i, param in enumerate(self):
        grad = _scaled(grads[i], grad_scale)
        p = widened(param)
        rate, slow, decay, tiny = (_number(v, p) for v in (lr, lr_decay, weight_decay, eps))
        g = -widened(grad) if maximize else widened(grad)
        g = g + decay * p
        rate = rate / (1 + (state_steps[i].reshape(()).astype(p.dtype) - 1) * slow)
        total = widened(state_sums[i]) + g * g
        outs[0].append(_kept(p - rate * g / (jnp.sqrt(total) + tiny), param, found_inf))
        outs[1].append(grad)
        outs[2].append(_kept(total, state_sums[i], found_inf))
    return outs[0], outs[1], outs[2]


@lowers("aten._fused_adagrad.tensor_lr")
def fused_adagrad_tensor_lr(
    *lists: _Arrays, **options: Any
) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
    return _adagrad(*lists, **options)


@lowers("aten._fused_adagrad.default")
def fused_adagrad(*lists: _Arrays, **options: Any) -> tuple[Sequence[jax.Array], ...]:
    # This overload also returns the steps, which the caller has already counted.
    return (*_adagrad(*lists, **options), list(lists[3]))

"""JAX functions as torch operators: custom kernels (Pallas too), with gradients by `jax.vjp`."""

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xdist.core.own import own_row

_serial = itertools.count()


def from_jax(
    function: Callable[..., Any], *, gradient: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A torch operator that computes a JAX function of device tensors.

    Args:
      function: takes one JAX array per tensor, returns one array or a tuple of arrays. It is
        traced once per combination of shapes and dtypes, so it must not depend on anything else.
      gradient: `gradient(inputs, outputs, output_gradients)`, each a tuple of arrays, returns a
        tuple with one array (or None) per input. Default: `jax.vjp` of `function`.

    Returns a function of tensors that gives a tensor, or a tuple of tensors.

    Example:
      double = from_jax(lambda x: 2 * x)
      y = double(torch.ones(3, device="xla", requires_grad=True))
    """
    name = f"from_jax.{getattr(function, '__name__', 'function')}.{next(_serial)}"
    backward = gradient or functools.partial(_vjp, function)

    def call(*tensors: torch.Tensor) -> Any:
        results = _Row.apply(name, (), function, backward, *tensors)
        return results if len(results) > 1 else results[0]

    return functools.update_wrapper(call, function)


def differentiable_row(
    name: str, function: Callable[..., Any], tensors: Sequence[Any], key: Hashable
) -> list[Any]:
    """An own row with a gradient by `jax.vjp`; `name` and `key` identify the function."""
    return list(_Row.apply(name, key, function, functools.partial(_vjp, function), *tensors))


class _Row(torch.autograd.Function):
    """An own row of a function, and another one of its `backward` for the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str,
        key: Hashable,
        function: Callable[..., Any],
        backward: Callable[..., Any],
        *tensors: Any,
    ) -> tuple[Any, ...]:
        results = own_row(name, function, tensors, key)
        ctx.save_for_backward(*tensors, *results)
        ctx.row, ctx.inputs = (name, key, backward), len(tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        name, key, backward = ctx.row
        saved, n = ctx.saved_tensors, ctx.inputs
        return None, None, None, None, *_gradients(name, backward, saved[:n], saved[n:], grads, key)


def _gradients(
    name: str,
    backward: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    key: Hashable,
) -> tuple[torch.Tensor | None, ...]:
    """Record the backward function on everything it may read."""
    given = [g if g is not None else torch.zeros_like(o) for g, o in zip(grads, outputs)]
    n, m = len(inputs), len(outputs)
    wanted = tuple(x.is_floating_point() or x.is_complex() for x in inputs)

    def row(*arrays: jax.Array) -> list[Any]:
        parts = arrays[:n], arrays[n : n + m], arrays[n + m :]
        results = backward(*parts)
        return [
            jnp.zeros_like(x) if r is None else r
            for x, r, want in zip(arrays, results, wanted)
            if want
        ]

    # A row with a gradient again, so that there are second derivatives.
    results = iter(differentiable_row(f"{name}.backward", row, [*inputs, *outputs, *given], key))
    return tuple(next(results) if want else None for want in wanted)


def _vjp(function: Callable[..., Any], inputs: Any, outputs: Any, grads: Any) -> tuple[Any, ...]:
    results, pull = jax.vjp(lambda *xs: tuple(jax.tree.leaves(function(*xs))), *inputs)
    float0 = jax.dtypes.float0
    # JAX's gradients by complex numbers are the conjugates of torch's.
    seeds = tuple(
        jnp.conj(g) if jnp.issubdtype(r.dtype, jnp.inexact) else _no_gradient(r)
        for g, r in zip(grads, results)
    )
    return tuple(None if g.dtype == float0 else jnp.conj(g) for g in pull(seeds))


def _no_gradient(result: jax.Array) -> Any:
    return np.zeros(result.shape, jax.dtypes.float0)

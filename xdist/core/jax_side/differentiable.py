"""Rows of our own with gradients of every order: the backward pass is a row as well, and so on."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.jax_ops import record_jax

Function = Callable[..., Any]
# gradient(inputs, outputs, output_gradients), each a tuple of arrays: one array or None per input.
Gradient = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]]


def differentiable_row(
    name: str,
    function: Function,
    tensors: Sequence[torch.Tensor],
    key: Hashable = (),
    gradient: Gradient | None = None,
) -> list[XlaTensor]:
    """`record_jax`, with a gradient: the given one, or `jax.vjp` of the function.

    `name` and `key` determine the function and its gradient, which must hold no tensors.
    """
    return list(_Row.apply(name, key, function, gradient, *tensors))


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str,
        key: Hashable,
        function: Function,
        gradient: Gradient | None,
        *tensors: Any,
    ) -> tuple[XlaTensor, ...]:
        results = record_jax(name, function, tensors, key)
        ctx.row = name, key, function, gradient
        ctx.count = len(tensors)
        # The gradient that JAX makes needs the inputs alone.
        ctx.save_for_backward(*tensors, *(results if gradient is not None else ()))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        name, key, function, gradient = ctx.row
        count, saved = ctx.count, ctx.saved_tensors
        inputs = saved[:count]
        wanted = tuple(
            i for i, need in enumerate(ctx.needs_input_grad[4:]) if need and is_smooth(inputs[i])
        )
        if gradient is None:
            pull = partial(pull_back, function, wanted, count)
        else:
            pull = partial(_given, gradient, wanted, count, len(saved) - count)
        row = f"{name}_backward", pull, [*saved, *grads], (key, wanted)
        found = dict(zip(wanted, differentiable_row(*row)))
        return None, None, None, None, *(found.get(i) for i in range(count))


def is_smooth(tensor: torch.Tensor) -> bool:
    """Whether a tensor may have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def pull_back(
    function: Function, wanted: Sequence[int], count: int, *arrays: jax.Array
) -> list[jax.Array]:
    """The gradients of the `wanted` ones of `count` inputs; the results' gradients follow them."""
    inputs, grads = list(arrays[:count]), arrays[count:]

    def of_wanted(*chosen: jax.Array) -> list[jax.Array]:
        for i, array in zip(wanted, chosen):
            inputs[i] = array
        return jax.tree.leaves(function(*inputs))

    results, pull = jax.vjp(of_wanted, *(inputs[i] for i in wanted))
    # JAX's gradients by complex numbers are the conjugates of torch's.
    seeds = [
        jnp.conj(g) if jnp.issubdtype(r.dtype, jnp.inexact) else _no_gradient(r)
        for g, r in zip(grads, results)
    ]
    return [jnp.conj(g) for g in pull(seeds)]


def _no_gradient(result: jax.Array) -> Any:
    return np.zeros(result.shape, jax.dtypes.float0)


def _given(
    gradient: Gradient, wanted: Sequence[int], inputs: int, outputs: int, *arrays: jax.Array
) -> list[jax.Array]:
    """The wanted gradients, of a function that gives one per input, or None."""
    parts = arrays[:inputs], arrays[inputs : inputs + outputs], arrays[inputs + outputs :]
    results = gradient(*parts)
    return [jnp.zeros_like(arrays[i]) if results[i] is None else results[i] for i in wanted]

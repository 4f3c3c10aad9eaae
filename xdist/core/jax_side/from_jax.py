"""JAX functions as torch operators: custom kernels (Pallas too), with gradients by `jax.vjp`."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.core.jax_side.differentiable import Gradient, differentiable_row

_serial = itertools.count()


def from_jax(
    function: Callable[..., Any], *, gradient: Gradient | None = None
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

    def call(*tensors: torch.Tensor) -> Any:
        results = differentiable_row(name, function, tensors, gradient=gradient)
        return tuple(results) if len(results) > 1 else results[0]

    return functools.update_wrapper(call, function)

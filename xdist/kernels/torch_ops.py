"""Gradients of the kernels in `torch.ops.xla`, and what they give for tensors without values."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.torch_side.xla_namespace import LIBRARY, Kernel


def gradients(
    function: Kernel, inputs: Sequence[Any], needs: Sequence[bool], grad: torch.Tensor
) -> list[torch.Tensor | None]:
    """The gradients of `function(*inputs)`, None where none is needed.

    In a backward pass under `create_graph=True` they have gradients again.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # As tensors of their own: one input may depend on another one.
        own = [
            x if not isinstance(x, torch.Tensor)
            else x.view_as(x) if again
            else x.detach().requires_grad_(need)
            for x, need in zip(inputs, needs)
        ]  # fmt: skip
        result = function(*own)
    wanted = [x for x, need in zip(own, needs) if need]
    found = iter(torch.autograd.grad(result, wanted, grad, create_graph=again))
    return [next(found) if need else None for need in needs]


def differentiate(name: str, function: Kernel) -> None:
    """Give `torch.ops.xla.NAME` the gradient of a function that computes the same.

    The backward pass computes the function again; what no gradient needs of that is dropped when
    the program is compiled.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        is_tensor = [isinstance(x, torch.Tensor) for x in inputs]
        ctx.save_for_backward(*(x for x, tensor in zip(inputs, is_tensor) if tensor))
        ctx.rest = [None if tensor else x for x, tensor in zip(inputs, is_tensor)]
        ctx.is_tensor = is_tensor

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if tensor else x for x, tensor in zip(ctx.rest, ctx.is_tensor)]
        return tuple(gradients(function, inputs, ctx.needs_input_grad, grad))

    torch.library.register_autograd(f"xla::{name}", backward, setup_context=save, lib=LIBRARY)


def warn_of_no_values(what: str, operand: torch.Tensor) -> None:
    """Say that a result like this one's has no values, where the operand itself has some."""
    if operand.device.type != "meta":
        warnings.warn(
            f"XLA {what} should only be applied to tensors on XLA device; the result has no values",
            stacklevel=3,
        )


def non_xla_attetion(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention_type: str
) -> torch.Tensor:
    """What an attention of these looks like: a tensor like `q`, without values."""
    warn_of_no_values(f"{attention_type} attention", k)
    return torch.empty_like(q)


def non_xla_ragged_paged_attention(
    q: torch.Tensor, kv: torch.Tensor, attention_type: str
) -> torch.Tensor:
    """The same of an attention whose keys and values are one tensor."""
    return non_xla_attetion(q, kv, kv, attention_type)

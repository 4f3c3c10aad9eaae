"""Gradients of many small batches, summed by one loop of the program."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xdist.core.jax_side.control_flow import scan
from torch_xdist.core.trace.values import last_write
from torch_xdist.errors import ArgumentError, ImpureError


@dataclass(frozen=True, slots=True)
class GradientAccumulationContext:
    """How many turns a loop has, and how many tensors it walks along and carries."""

    num_gradient_steps: int
    num_iterable_tensors: int
    num_carried_tensors: int


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: torch.nn.Module,
    *carried_tensors: torch.Tensor,
) -> Any:
    """Add the gradients of `train_step`'s mean loss over dim 0 to the parameters' `.grad`.

    The step is compiled once, whatever the number of turns, and holds the activations of one turn.

    Args:
        train_step: (*slices, *carried) -> loss, or (loss, *carried) where something is carried. It
            must not write to its arguments.
        iterable_tensors: tensors [n, ...] of one n; a turn gets the slices [...].
        model: its parameters are what gets gradients.
        carried_tensors: what is passed from turn to turn.

    Returns the mean loss [], followed by the last carried tensors where there are some.
    """
    turns = _turns(iterable_tensors)
    context = GradientAccumulationContext(turns, len(iterable_tensors), len(carried_tensors))
    trained = [p for p in model.parameters() if p.requires_grad]
    is_used = [False] * len(trained)

    def body(carry: Any, slices: Any) -> tuple[Any, None]:
        total, sums, carried = carry
        loss, found, carried = _turn(train_step, slices, carried, trained, context)
        is_used[:] = [gradient is not None for gradient in found]
        sums = [s if g is None else s + g for s, g in zip(sums, found, strict=True)]
        return (total + loss, sums, carried), None

    start = (
        torch.zeros((), device=iterable_tensors[0].device),
        [torch.zeros_like(parameter) for parameter in trained],
        tuple(carried_tensors),
    )
    with torch.no_grad():
        (loss, sums, carried), _ = scan(body, start, tuple(iterable_tensors))
    for parameter, gradient, used in zip(trained, sums, is_used, strict=True):
        if used:
            _add_gradient(parameter, gradient)
    return (loss, *carried) if carried_tensors else loss


def _turns(tensors: Sequence[Any]) -> int:
    """The size of dim 0 of all of them."""
    if not tensors:
        raise ArgumentError(
            "gradient_accumulation: iterable_tensors cannot be empty; give tensors [n, ...]"
        )
    for place, tensor in enumerate(tensors):
        where = f"gradient_accumulation: element {place} of iterable_tensors"
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{where} is a {type(tensor).__name__}; give a tensor [n, ...]")
        if not tensor.dim() or not tensor.numel():
            raise ArgumentError(
                f"{where} has shape {tuple(tensor.shape)}, so there is no turn; give [n, ...]"
            )
        if len(tensor) != len(tensors[0]):
            raise ArgumentError(
                f"{where} has {len(tensor)} slices along dim 0, element 0 has {len(tensors[0])};"
                " give all the same number"
            )
    return len(tensors[0])


def _turn(
    train_step: Callable[..., Any],
    slices: Sequence[torch.Tensor],
    carried: Sequence[torch.Tensor],
    trained: Sequence[torch.nn.Parameter],
    context: GradientAccumulationContext,
) -> tuple[torch.Tensor, list[torch.Tensor | None], tuple[torch.Tensor, ...]]:
    """The turn's part of the mean loss, its gradients, and what it passes on."""
    given = [*slices, *carried]
    before = [last_write(tensor) for tensor in given]
    outside = [parameter.grad for parameter in trained]
    try:
        for parameter in trained:
            parameter.grad = None
        with torch.enable_grad():
            result = train_step(*given)
            loss, *passed = result if context.num_carried_tensors else (result,)
            loss = loss / context.num_gradient_steps
            loss.backward()
        found = [parameter.grad for parameter in trained]
    finally:
        for parameter, gradient in zip(trained, outside, strict=True):
            parameter.grad = gradient
    for place, (tensor, write) in enumerate(zip(given, before, strict=True)):
        if last_write(tensor) != write:
            raise ImpureError(
                f"gradient_accumulation: train_step wrote to its argument {place} of shape"
                f" {tuple(tensor.shape)}; compute a new tensor, and return what is carried"
            )
    return loss.detach(), found, tuple(tensor.detach() for tensor in passed)


def _add_gradient(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)

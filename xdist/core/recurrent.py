"""LSTM, GRU and plain recurrent layers, each recorded as one row.

torch makes a recurrent layer of a dozen operators per time step above autograd; kernels under the
AutogradLazy key catch `aten::lstm.input` and its kin and record all layers as one row. What they
do not serve goes torch's way: dropout between layers, projections, packed sequences.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import torch

from torch_xdist.core.own import own_row
from torch_xdist.core.tensor import XlaTensor
from torch_xdist.core.whole import WholeRow, are_ours, pull_back
from torch_xdist.ops.rnn import CELLS, Layers, run_layers

_libraries: list[torch.library.Library] = []
# How to rebuild the pull-back of a row from the arrays it saved, by what determines the row.
_PULLS: dict[Hashable, Any] = {}


class LayersRow(torch.autograd.Function):
    """All layers as one row, which saves what the backward row needs.

    The backward loop reads what the forward loop went through; running the forward loop again
    would cost half as much as both.
    """

    @staticmethod
    def forward(ctx: Any, layers: Layers, *tensors: XlaTensor) -> tuple[XlaTensor, ...]:
        count = 1 + layers.states
        ctx.layers, ctx.count = layers, len(tensors)
        ctx.key = (layers, *(t.cell.kind for t in tensors))
        results = own_row(layers.kind, _saving(layers, ctx.key), tensors, (layers, "saving"))
        ctx.save_for_backward(*tensors, *results[count:])
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *grads: XlaTensor) -> tuple[Any, ...]:
        layers: Layers = ctx.layers
        inputs, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        name = f"{layers.kind}_backward"
        if not torch.is_grad_enabled():
            pull = _pull(ctx.key, len(saved))
            return None, *own_row(name, pull, [*saved, *grads], (layers, len(saved)))

        def gradient(*arrays: jax.Array) -> list[jax.Array]:
            inner, outer = arrays[: ctx.count], arrays[ctx.count :]
            return pull_back(_function(layers), range(ctx.count), inner, outer)

        return None, *WholeRow.apply(name, layers, gradient, *inputs, *grads)


def _function(layers: Layers) -> Callable[..., list[jax.Array]]:
    return lambda *arrays: run_layers(layers, *arrays)


def _saving(layers: Layers, key: Hashable) -> Callable[..., list[jax.Array]]:
    """The layers, whose results are followed by the arrays that `_pull(key)` takes."""

    def run(*arrays: jax.Array) -> list[jax.Array]:
        results, pull = jax.vjp(_function(layers), *arrays)
        saved, _PULLS[key] = jax.tree.flatten(pull)
        return [*results, *saved]

    return run


def _pull(key: Hashable, count: int) -> Callable[..., list[jax.Array]]:
    """The gradients of all inputs from `count` saved arrays and the gradients of all results."""

    def run(*arrays: jax.Array) -> list[jax.Array]:
        pull = jax.tree.unflatten(_PULLS[key], arrays[:count])
        return list(pull(list(arrays[count:])))

    return run


def _fits(
    layers: Layers, dropout: float, train: bool, tensors: Sequence[torch.Tensor], count: int
) -> bool:
    """Whether one row serves: known parameters, no dropout, nothing empty."""
    if (dropout > 0 and train and layers.num_layers > 1) or not are_ours(*tensors):
        return False
    expected = layers.num_layers * layers.directions * layers.per_direction
    return count == expected and tensors[0].dim() == 3 and all(t.numel() for t in tensors)


def _kernel(kind: str) -> Callable[..., Any]:
    """The kernel of `aten::KIND.input`."""
    func = getattr(torch.ops.aten, kind).input

    def kernel(
        input: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        layers = Layers(kind, has_biases, num_layers, bidirectional, batch_first)
        first = list(hx) if kind == "lstm" else [hx]
        tensors = [input, *first, *params]
        if not _fits(layers, dropout, train, tensors, len(params)):
            rest = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
            return func.decompose(input, hx, params, *rest)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return LayersRow.apply(layers, *tensors)
        return tuple(own_row(kind, _function(layers), tensors, layers))

    return kernel


def register() -> None:
    """Enter the kernels. Called once, with the device's registration."""
    library = torch.library.Library("aten", "IMPL", "AutogradLazy")
    for kind in CELLS:
        library.impl(f"{kind}.input", _kernel(kind))
    _libraries.append(library)

"""LSTM, GRU and plain recurrent layers, each recorded as one row; cells of theirs.

torch makes a recurrent layer of a dozen operators per time step above autograd; kernels under the
AutogradLazy key catch `aten::lstm.input` and its kin and record all layers as one row, or with
dropout between them each as one, of packed sequences too. What they do not serve goes torch's way:
projections. A cell, which a script calls for each time, takes torch's way for GPUs: products, and
one operator for all that its gates do, with one for the gradient (`ops/rnn_cells.py`).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch.nn.functional import linear

from torch_xdist.core.composites.attention import are_ours
from torch_xdist.core.composites.packed import Packed, Unpacked, layout_of
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side.differentiable import differentiable_row, pull_back
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.dtypes import to_jax
from torch_xdist.ops.rnn import CELLS, Layers, run_layers

_libraries: list[torch.library.Library] = []


class LayersRow(torch.autograd.Function):
    """All layers as one row, which saves what the backward row needs.

    The backward loop reads what the forward loop went through; running the forward loop again
    would cost half as much as both.
    """

    @staticmethod
    def forward(ctx: Any, layers: Layers, *tensors: XlaTensor) -> tuple[XlaTensor, ...]:
        count = 1 + layers.states
        ctx.layers, ctx.count = layers, len(tensors)
        ctx.types = tuple(t.value.type for t in tensors)
        run = functools.partial(_run_saving, layers)
        results = record_jax(layers.kind, run, tensors, (layers, "saving"))
        ctx.save_for_backward(*tensors, *results[count:])
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *grads: XlaTensor) -> tuple[Any, ...]:
        layers: Layers = ctx.layers
        inputs, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        name = f"{layers.kind}_backward"
        if not torch.is_grad_enabled():
            pull = functools.partial(_pull_saved, layers, ctx.types, len(saved))
            return None, *record_jax(name, pull, [*saved, *grads], (layers, len(saved)))
        function = functools.partial(run_layers, layers)
        pull = functools.partial(pull_back, function, range(ctx.count), ctx.count)
        return None, *differentiable_row(name, pull, [*inputs, *grads], layers)


def _run_saving(layers: Layers, *arrays: jax.Array) -> list[jax.Array]:
    """The layers, whose results are followed by the arrays that `_pull_saved` takes."""
    results, pull = jax.vjp(functools.partial(run_layers, layers), *arrays)
    return [*results, *jax.tree.leaves(pull)]


def _pull_saved(
    layers: Layers, types: tuple[TensorType, ...], count: int, *arrays: jax.Array
) -> list[jax.Array]:
    """The gradients of all inputs from `count` saved arrays and the gradients of all results."""
    pull = jax.tree.unflatten(_structure(layers, types), arrays[:count])
    return list(pull(list(arrays[count:])))


@functools.lru_cache(maxsize=256)
def _structure(layers: Layers, types: tuple[TensorType, ...]) -> Any:
    """What JAX's pull-back of the layers is beside the arrays it holds."""
    abstract = [jax.ShapeDtypeStruct(t.shape, to_jax(t.dtype)) for t in types]
    function = functools.partial(run_layers, layers)
    return jax.tree.structure(jax.eval_shape(lambda *xs: jax.vjp(function, *xs)[1], *abstract))


def _fits(layers: Layers, tensors: Sequence[torch.Tensor], count: int) -> bool:
    """Whether rows of ours serve: known parameters, nothing empty."""
    if not are_ours(*tensors):
        return False
    expected = layers.num_layers * layers.directions * layers.per_direction
    dims = 2 if layers.has_lengths else 3
    return count == expected and tensors[0].dim() == dims and all(t.numel() for t in tensors)


def _recorded(layers: Layers, tensors: Sequence[XlaTensor]) -> tuple[XlaTensor, ...]:
    """All layers as one row; the tensors are those of `run_layers`."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return LayersRow.apply(layers, *tensors)  # type: ignore[no-any-return]
    return tuple(record_jax(layers.kind, functools.partial(run_layers, layers), tensors, layers))


def _run(layers: Layers, dropout: float, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """All layers, with dropout of what each gives to the next."""
    if dropout == 0 or layers.num_layers == 1:
        return _recorded(layers, tensors)
    one = dataclasses.replace(layers, num_layers=1)
    x: Any = tensors[0]
    rest = [*tensors[1:]]
    within = [rest.pop()] if layers.has_lengths else []
    first = [state.split(layers.directions) for state in rest[: layers.states]]
    params, size = rest[layers.states :], layers.directions * layers.per_direction
    last = []
    for number in range(layers.num_layers):
        x = torch.dropout(x, dropout, True) if number else x
        own = params[number * size : (number + 1) * size]
        x, *states = _recorded(one, [x, *(state[number] for state in first), *own, *within])
        last.append(states)
    return x, *(torch.cat(states) for states in zip(*last))


def _kernel(kind: str) -> Callable[..., Any]:
    """The kernel of `aten::KIND.input`."""
    func = getattr(torch.ops.aten, kind).input

    def kernel(input: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *rest: Any) -> Any:
        has_biases, num_layers, dropout, train, bidirectional, batch_first = rest
        layers = Layers(kind, has_biases, num_layers, bidirectional, batch_first)
        first = list(hx) if kind == "lstm" else [hx]
        tensors = [input, *first, *params]
        if not _fits(layers, tensors, len(params)):
            return func.decompose(input, hx, params, *rest)
        return _run(layers, dropout if train else 0, tensors)

    return kernel


def _kernel_of_packed(kind: str) -> Callable[..., Any]:
    """The kernel of `aten::KIND.data`."""
    func = getattr(torch.ops.aten, kind).data

    def kernel(
        data: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        *rest: Any,
    ) -> Any:
        has_biases, num_layers, dropout, train, bidirectional = rest
        layers = Layers(kind, has_biases, num_layers, bidirectional, False, has_lengths=True)
        first = list(hx) if kind == "lstm" else [hx]
        tensors = [data, *first, *params]
        if not _fits(layers, tensors, len(params)) or not _are_sizes(batch_sizes, data):
            return func.decompose(data, batch_sizes, hx, params, *rest)
        layout = layout_of(batch_sizes, data.device)
        tensors[0] = Unpacked.apply(data, layout)
        out, *states = _run(
            layers, dropout if train else 0, [*tensors, layout.within.to(data.dtype)]
        )
        return Packed.apply(out, layout), *states

    return kernel


def _are_sizes(batch_sizes: torch.Tensor, data: torch.Tensor) -> bool:
    """Whether these are numbers of sequences that no one begins late, of all rows."""
    if batch_sizes.device.type != "cpu" or not len(batch_sizes):
        return False
    sizes = batch_sizes.tolist()
    return sizes == sorted(sizes, reverse=True) and sizes[-1] > 0 and sum(sizes) == len(data)


def _fits_cell(
    gates: int,
    input: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
) -> bool:
    """Whether one operator serves for all gates: shapes as they should be, one dtype."""
    given = [input, *states, *weights, *(x for x in biases if x is not None)]
    if not are_ours(*given) or torch.is_autocast_enabled("xla"):
        return False
    size = weights[1].shape[-1]
    return (
        input.dim() == 2
        and input.numel() > 0
        and all(state.shape == (len(input), size) for state in states)
        and weights[0].shape == (gates * size, input.shape[1])
        and weights[1].shape == (gates * size, size)
        and all(bias is None or bias.shape == (gates * size,) for bias in biases)
        and len({t.dtype for t in given}) == 1
    )


def lstm_cell(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel of `aten::lstm_cell`: input [b, i], states [b, h], weights [4 * h, i or h]."""
    if not _fits_cell(4, input, hx, (w_ih, w_hh), (b_ih, b_hh)):
        func = torch.ops.aten.lstm_cell.default
        return func.decompose(input, hx, w_ih, w_hh, b_ih, b_hh)  # type: ignore[no-any-return]
    shares = linear(input, w_ih), linear(hx[0], w_hh)
    hy, cy, _ = torch.ops.aten._thnn_fused_lstm_cell.default(*shares, hx[1], b_ih, b_hh)
    return hy, cy


def gru_cell(
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """The kernel of `aten::gru_cell`: input [b, i], state [b, h], weights [3 * h, i or h]."""
    if not _fits_cell(3, input, (hx,), (w_ih, w_hh), (b_ih, b_hh)):
        func = torch.ops.aten.gru_cell.default
        return func.decompose(input, hx, w_ih, w_hh, b_ih, b_hh)  # type: ignore[no-any-return]
    shares = linear(input, w_ih), linear(hx, w_hh)
    hy: torch.Tensor = torch.ops.aten._thnn_fused_gru_cell.default(*shares, hx, b_ih, b_hh)[0]
    return hy


def register() -> None:
    """Let each recurrent layer arrive whole."""
    library = torch.library.Library("aten", "IMPL", "AutogradLazy")
    for kind in CELLS:
        library.impl(f"{kind}.input", _kernel(kind))
        library.impl(f"{kind}.data", _kernel_of_packed(kind))
    library.impl("lstm_cell", lstm_cell)
    library.impl("gru_cell", gru_cell)
    _libraries.append(library)

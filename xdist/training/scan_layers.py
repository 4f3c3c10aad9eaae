"""Layers of one form, as one loop of the program: it is compiled as if there was one."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torch_xdist.core.devices.device import choices
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side.partition import Partition
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.trace.values import last_write
from torch_xdist.errors import ArgumentError, ValueLostError
from torch_xdist.ops import apart
from torch_xdist.training.scan import scan

# What one layer computes, of layers that are said to be pure, so that `scan` finds the same
# function again: by the ids of the partitioner, which stands beside it, and of the layer, with
# which it goes.
_ONE_LAYER_CACHE: dict[tuple[int, int], tuple[Callable[..., Any], Partition | None]] = {}


def scan_layers(
    layers: Iterable[torch.nn.Module],
    input_data: Any,
    partition_fn: Partition | None = None,
    is_layer_pure: bool = False,
) -> Any:
    """What the layers compute one after another, with gradients; their buffers are updated too.

    Args:
        layers: modules that compute the same from parameters of the same shapes. The first one's
            `forward` is used for all; another dropout probability, say, is not seen.
        input_data: what the first layer takes, and every layer returns: tensors, nested. A tuple
            holds the arguments of a layer.
        partition_fn: what the backward pass computes again; see `scan`. Default: nothing.
        is_layer_pure: trace the first layer once, not at each call.

    Raises ArgumentError where the layers' parameters or buffers differ in name or shape.
    """
    listed = list(layers)
    if not listed:
        return input_data
    own = [dict(layer.named_parameters()) | dict(layer.named_buffers()) for layer in listed]
    _check_alike(own)
    if not own[0]:
        return _in_turn(listed, input_data)
    stacked = {name: _Stack.apply(*(tensors[name] for tensors in own)) for name in own[0]}

    one_layer = _one_layer(listed[0], partition_fn, is_layer_pure)
    result, written = scan(one_layer, input_data, stacked, partition_fn, is_layer_pure)
    _write_back(own, written)
    return result


class _Stack(torch.autograd.Function):
    """`torch.stack` of device tensors, whose gradients are rows of one.

    On CPUs, where kernels take most of the time to compile, what is made of those is compiled once
    for all of them. They are arrays of their own then, elsewhere views.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        # What no layer uses has no gradient, which is not one of zeros.
        ctx.set_materialize_grads(False)
        ctx.count = len(tensors)
        return torch.stack(tensors)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:  # type: ignore[override]
        if grad is None:
            return (None,) * ctx.count
        return _Rows.apply(grad) if choices().is_host else grad.unbind()


class _Rows(torch.autograd.Function):
    """`torch.unbind` of a device tensor along dim 0, by one row."""

    @staticmethod
    def forward(ctx: Any, stacked: XlaTensor) -> Any:  # type: ignore[override]
        return tuple(record_jax("unbind", apart.rows, [stacked]))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:  # type: ignore[override]
        return _Stack.apply(*grads)


def _one_layer(
    first: torch.nn.Module, partition_fn: Partition | None, is_pure: bool
) -> Callable[..., Any]:
    """(input, tensors of a layer) -> (output, those of the tensors that it wrote)."""
    key = id(partition_fn), id(first)
    if is_pure and key in _ONE_LAYER_CACHE:
        return _ONE_LAYER_CACHE[key][0]
    buffers = {name for name, _ in first.named_buffers()}
    # What is kept must not keep the layer and its weights.
    layer = weakref.ref(first) if is_pure else lambda: first

    def one_layer(value: Any, given: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
        # A body's tensors may all need gradients, which a buffer may not.
        used = {name: t.detach() if name in buffers else t for name, t in given.items()}
        before = {name: last_write(tensor) for name, tensor in used.items()}
        module = layer()
        if module is None:
            raise ValueLostError(
                "scan_layers: the backward pass is recorded once more, for gradients of gradients,"
                " and the first layer is gone; keep it until then"
            )
        value = torch.func.functional_call(module, used, _arguments(value))
        return value, {n: t.detach() for n, t in used.items() if last_write(t) != before[n]}

    if is_pure:
        _ONE_LAYER_CACHE[key] = one_layer, partition_fn
        weakref.finalize(first, _ONE_LAYER_CACHE.pop, key, None).atexit = False
    return one_layer


def _write_back(layers: Sequence[dict[str, torch.Tensor]], written: Mapping[str, Any]) -> None:
    """Give the layers' own tensors, such as running statistics, what the loop made of them."""
    with torch.no_grad():
        for name, rows in written.items():
            for tensors, row in zip(layers, rows.unbind(), strict=True):
                tensors[name].copy_(row)


def _in_turn(layers: Sequence[torch.nn.Module], value: Any) -> Any:
    """Layers without tensors leave nothing to walk along."""
    for layer in layers:
        value = layer(*_arguments(value))
    return value


def _arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _check_alike(layers: Sequence[Mapping[str, torch.Tensor]]) -> None:
    first = layers[0]
    for place, tensors in enumerate(layers):
        missing, extra = sorted(first.keys() - tensors), sorted(tensors.keys() - first)
        if missing or extra:
            raise ArgumentError(
                f"scan_layers: layer {place} has mismatched keys: it lacks {missing} of layer 0 and"
                f" has {extra} besides; give layers of one form"
            )
        for name, tensor in tensors.items():
            if tensor.shape != first[name].shape:
                raise ArgumentError(
                    f"scan_layers: Shape mismatch: {name} has shape {tuple(tensor.shape)} in layer"
                    f" {place}, {tuple(first[name].shape)} in layer 0; give layers of one form"
                )

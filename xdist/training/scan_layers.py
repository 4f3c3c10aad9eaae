"""Layers of one form, as one loop of the program: it is compiled as if there was one."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from torch_xdist.core.jax_side.control_flow import scan
from torch_xdist.errors import ArgumentError


def scan_layers(
    layers: Iterable[torch.nn.Module],
    input_data: Any,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> Any:
    """What `torch.nn.Sequential(*layers)(input_data)` computes, with gradients.

    Args:
        layers: modules that compute the same from parameters of the same shapes. The first one's
            `forward` is used for all; another dropout probability, say, is not seen.
        input_data: tensors, nested as a layer takes and returns them.
        partition_fn, is_layer_pure: accepted for torch_xla's sake.

    Raises ArgumentError where the layers' parameters or buffers differ in name or shape.
    """
    listed = list(layers)
    if not listed:
        return input_data
    own = [dict(layer.named_parameters()) | dict(layer.named_buffers()) for layer in listed]
    _check_alike(own)
    # Its parameters are replaced for each call, so the layers themselves stay as they are.
    first = copy.copy(listed[0])
    stacked = {name: torch.stack([tensors[name] for tensors in own]) for name in own[0]}

    def one_layer(value: Any, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, None]:
        return torch.func.functional_call(first, dict(tensors), (value,)), None

    if not stacked:
        return _in_turn(listed, input_data)
    return scan(one_layer, input_data, stacked)[0]


def _in_turn(layers: Sequence[torch.nn.Module], value: Any) -> Any:
    """Layers without tensors leave nothing to walk along."""
    for layer in layers:
        value = layer(value)
    return value


def _check_alike(layers: Sequence[Mapping[str, torch.Tensor]]) -> None:
    first = layers[0]
    for place, tensors in enumerate(layers):
        missing, extra = sorted(first.keys() - tensors), sorted(tensors.keys() - first)
        if missing or extra:
            raise ArgumentError(
                f"scan_layers: layer {place} has other tensors than layer 0: missing {missing},"
                f" more {extra}; give layers of one form"
            )
        for name, tensor in tensors.items():
            if tensor.shape != first[name].shape:
                raise ArgumentError(
                    f"scan_layers: {name} of layer {place} has shape {tuple(tensor.shape)}, of"
                    f" layer 0 {tuple(first[name].shape)}; give layers of one form"
                )

"""`input_sharding`: specs applied to the tensors of a batch after they arrived on the device.

A spec is any object with `apply(tensor)`.
"""

from collections.abc import Mapping
from typing import Any

import torch

from torch_xdist.loaders.errors import BatchError
from torch_xdist.loaders.feed import MoveBatch
from torch_xdist.loaders.structure import tensors


def sharded(move: MoveBatch, sharding: Any) -> MoveBatch:
    """`move`, then `apply` of the specs: of one spec to every tensor, of a dict to its keys."""
    if sharding is None:
        return move

    def moved(batch: Any) -> Any:
        result = move(batch)
        if not isinstance(sharding, Mapping):
            for tensor in _values(result):
                sharding.apply(tensor)
            return result
        _check_keys(result, sharding)
        for key, value in result.items():
            for tensor in _values(value):
                sharding[key].apply(tensor)
        return result

    return moved


def _check_keys(batch: Any, sharding: Mapping[Any, Any]) -> None:
    if not isinstance(batch, Mapping):
        raise BatchError(
            f"loader: input_sharding is a dict and the batch a {type(batch).__name__}; give one"
            " spec for all tensors, or batches that are dicts"
        )
    missing = [key for key in batch if key not in sharding]
    if missing:
        raise KeyError(f"Keys: {missing} are missing from input_sharding.")


def _values(batch: Any) -> list[torch.Tensor]:
    return [tensor for _, tensor in tensors(batch)]

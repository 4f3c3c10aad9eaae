"""`input_sharding`: specs applied to the tensors of a batch after they arrived on the device.

A spec is any object with `apply(tensor)`, which may return another one to take its place: where
each process has a part of the batch, the whole.
"""

from collections.abc import Mapping
from typing import Any

import torch

from torch_xdist.loaders.errors import BatchError
from torch_xdist.loaders.feed import MoveBatch
from torch_xdist.loaders.structure import mapped


def sharded(move: MoveBatch, sharding: Any) -> MoveBatch:
    """`move`, then `apply` of the specs: of one spec to every tensor, of a dict to its keys."""
    if sharding is None:
        return move

    def moved(batch: Any) -> Any:
        result = move(batch)
        if not isinstance(sharding, Mapping):
            return _applied(sharding, result)
        _check_keys(result, sharding)
        for key, value in [*result.items()]:
            result[key] = _applied(sharding[key], value)
        return result

    return moved


def _applied(spec: Any, batch: Any) -> Any:
    def applied(tensor: torch.Tensor, name: str) -> torch.Tensor:
        found = spec.apply(tensor)
        return tensor if found is None else found

    return mapped(batch, applied)


def _check_keys(batch: Any, sharding: Mapping[Any, Any]) -> None:
    if not isinstance(batch, Mapping):
        raise BatchError(
            f"loader: input_sharding is a dict and the batch a {type(batch).__name__}; give one"
            " spec for all tensors, or batches that are dicts"
        )
    missing = [key for key in batch if key not in sharding]
    if missing:
        raise KeyError(f"Keys: {missing} are missing from input_sharding.")

"""Collectives of tensors without values: one operator, `torch.ops.xla.collective`.

Fake tensors, and the graphs that torch captures, see this operator in the place of the function of
JAX that the device records. It knows that function by the name and the key of its row.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.dtypes import to_jax, to_torch
from torch_xdist.errors import DeviceError

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Collective:
    """What one operator of a graph does.

    Attributes:
        lowering: of arrays; tells the shapes of the results.
        record: of device tensors.
    """

    lowering: Callable[..., Any]
    record: Callable[[Tensors], Any]


_known: dict[tuple[str, str], _Collective] = {}


def has_no_value(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the device only says what one would look like: fake, or functional."""
    return tensor.__class__ is not XlaTensor and tensor.device.type == "xla"


def call(
    name: str,
    key: Hashable,
    lowering: Callable[..., Any],
    record: Callable[[Tensors], Any],
    tensors: Tensors,
) -> list[torch.Tensor]:
    """The operator, called on tensors without values.

    `name` and `key` must determine what `lowering` and `record` do.
    """
    text = repr(key)
    _known.setdefault((name, text), _Collective(lowering, record))
    with torch.no_grad():  # A row of the device has no gradient either.
        return torch.ops.xla.collective(list(tensors), name, text)  # type: ignore[no-any-return]


def overwrite(target: torch.Tensor, result: torch.Tensor) -> None:
    """Let a tensor be what a collective gave."""
    with torch.no_grad():
        target.copy_(result)


def _collective(name: str, key: str) -> _Collective:
    found = _known.get((name, key))
    if found is None:
        raise DeviceError(
            f"torch.ops.xla.collective: {name} with {key} was captured in another process; capture"
            " the function again in this one"
        )
    return found


def _of_the_cpu(tensors: Tensors, name: str, key: str) -> list[torch.Tensor]:
    raise DeviceError(f"{name}: its tensors are on {tensors[0].device}; move them with .to('xla')")


def _without_values(tensors: Tensors, name: str, key: str) -> list[torch.Tensor]:
    arrays = [jax.ShapeDtypeStruct((*map(int, t.shape),), to_jax(t.dtype)) for t in tensors]
    results = jax.tree.leaves(jax.eval_shape(_collective(name, key).lowering, *arrays))
    return [tensors[0].new_empty(x.shape, dtype=to_torch(x.dtype)) for x in results]


def _on_device(tensors: Tensors, name: str, key: str) -> list[torch.Tensor]:
    return list(_collective(name, key).record(tensors))


define(
    "collective(Tensor[] tensors, str name, str key) -> Tensor[]",
    _of_the_cpu,
    meta=_without_values,
    device=_on_device,
)

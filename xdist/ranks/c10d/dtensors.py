"""torch's DTensor on meshes of xla devices: what torch leaves to other devices there.

Imported with the first mesh, because torch's part takes seconds to import.
"""

import contextlib
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch.distributed.tensor import _api, _random

from torch_xdist.core.devices import device
from torch_xdist.releases import patches


def register() -> None:
    """Complete torch's DTensor; a second call changes nothing."""
    for name in ("distribute_tensor", "distribute_module"):
        patches.wrap(f"{_api.__name__}.{name}.__code__", _without_detour)
    patches.extend(f"{_TENSOR}.DTensor._op_dispatcher._custom_op_handlers", _ARRIVING)
    patches.replace(f"{_TENSOR}.DTensor.device", property(lambda self: self._local_tensor.device))
    patches.replace(f"{_random.__name__}._rng_tracker", Streams())


_TENSOR = "torch.distributed.tensor"


def _without_detour(code: CodeType) -> CodeType:
    """Let it make DTensors on "xla", which it asks for by name, to leave it to torch_xla's SPMD.

    Many modules hold these functions by now, so it is their own constant that is changed.
    """
    constants = tuple("no device" if c == "xla" else c for c in code.co_consts)
    return code.replace(co_consts=constants)


def _linear_backward(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Of products, whose sharding torch knows."""
    x, grad, weight, wanted = args
    grads, matrix = (grad, weight) if weight.dim() == 2 else (grad[..., None], weight[None])
    rows = grads.reshape(-1, grads.shape[-1])
    inputs = x.reshape(-1, x.shape[-1])
    return (
        (rows @ matrix).reshape(x.shape) if wanted[0] else None,
        (rows.t() @ inputs).reshape(weight.shape) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


def _norm(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """As the operator that `Tensor.norm` is elsewhere; no dims mean all."""
    x, power, *rest = args
    dims = rest[0] if rest else None
    return torch.linalg.vector_norm(x, 2 if power is None else power, dims or None, *rest[1:])


# What arrives on this device only, and torch has no sharding for.
_ARRIVING = {
    torch.ops.aten.linear_backward.default: _linear_backward,
    torch.ops.aten.norm.ScalarOpt_dim: _norm,
}


class Streams(_random._RNGStateTracker):
    """Random numbers of DTensors: the same on ranks with the same shard, others elsewhere.

    Ranks must have the same seed, and have drawn equally often.
    """

    def __init__(self) -> None:
        self._use_distribute_region = True

    @contextlib.contextmanager
    def _distribute_region(self, spec: Any, generator: Any = None) -> Iterator[None]:
        stream = device.device_at(device.index_of(None)).random
        before, stream.lane = stream.lane, _shard_number(spec)
        try:
            yield
        finally:
            stream.lane = before


def _shard_number(spec: Any) -> int:
    """Which of the different shards of a DTensor this rank holds."""
    number = 0
    for dim, placement in enumerate(spec.placements):
        if not placement.is_replicate():
            number = number * spec.mesh.size(dim) + spec.mesh.get_local_rank(dim)
    return number

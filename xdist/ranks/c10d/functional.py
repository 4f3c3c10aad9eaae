"""The functional collectives of torch.distributed on the device, which DTensor uses.

`torch.ops._c10d_functional.NAME` returns a new tensor where the process group's method writes one.
torch has kernels of them for its own devices; elsewhere they would run on the CPU.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.record import dispatch
from torch_xdist.core.trace.operators import Op
from torch_xdist.releases import patches

# What torch_xla's own calls give for a group, which need no init_process_group.
_NAMES_OF_ALL = ("", "default")
_everybody: list[Callable[[], Any]] = []


def register(everybody: Callable[[], Any]) -> None:
    """Enter the functions under their operators' names.

    Args:
        everybody: makes the group of all ranks.
    """
    _everybody[:] = [everybody]
    dispatch.install(
        {
            **{f"_c10d_functional.{n}.default": _arriving(f) for n, f in _FUNCTIONS.items()},
            "_dtensor.shard_dim_alltoall.default": _arriving(_shard_other_dim),
        }
    )
    if patches.is_needed(_WRAPPER):
        importlib.import_module(_WRAPPER.rpartition(".")[0])
        patches.wrap(_WRAPPER, _waiting)


_WRAPPER = "torch.distributed._functional_collectives._maybe_wrap_tensor"


def _waiting(usual: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give out the result of a collective itself, which waits for nothing here: it is recorded.

    torch's wrapper is on xla, whose stream the device guard underneath refuses to name (torch 2.9).
    """

    def wait_or_wrap(tensor: Any) -> Any:
        is_ours = isinstance(tensor, XlaTensor)
        return torch.ops._c10d_functional.wait_tensor(tensor) if is_ours else usual(tensor)

    return wait_or_wrap


def _arriving(function: Callable[..., Any]) -> Callable[..., Any]:
    def handle(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    return handle


def _group(name: Any) -> Any:
    if name in _NAMES_OF_ALL and not dist.is_initialized():
        return _everybody[0]()
    return _resolve_process_group(name) if isinstance(name, str) else name  # type: ignore[arg-type]


def _operation(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper())


def _all_reduce_coalesced_(inputs: list[torch.Tensor], op: str, group: Any) -> list[torch.Tensor]:
    _group(group).allreduce_coalesced(inputs, _operation(op))
    return inputs


def _all_reduce_coalesced(
    inputs: Sequence[torch.Tensor], op: str, group: Any
) -> list[torch.Tensor]:
    return _all_reduce_coalesced_([x.clone() for x in inputs], op, group)


def _all_reduce_(x: torch.Tensor, op: str, group: Any) -> torch.Tensor:
    return _all_reduce_coalesced_([x], op, group)[0]


def _all_reduce(x: torch.Tensor, op: str, group: Any) -> torch.Tensor:
    return _all_reduce_coalesced([x], op, group)[0]


def _broadcast_(x: torch.Tensor, source: int, group: Any) -> torch.Tensor:
    options = dist.BroadcastOptions()
    options.rootRank = source
    _group(group).broadcast([x], options)
    return x


def _broadcast(x: torch.Tensor, source: int, group: Any) -> torch.Tensor:
    return _broadcast_(x.clone(), source, group)


def _gather_coalesced(inputs: list[torch.Tensor], size: int, group: Any) -> list[torch.Tensor]:
    outputs = [x.new_empty((size * (x.shape[0] if x.dim() else 1), *x.shape[1:])) for x in inputs]
    _group(group).all_gather_single_coalesced(outputs, inputs)
    return outputs


def _gather(x: torch.Tensor, size: int, group: Any) -> torch.Tensor:
    return _gather_coalesced([x], size, group)[0]


def _gather_out(x: torch.Tensor, size: int, group: Any, *, out: torch.Tensor) -> torch.Tensor:
    _group(group).all_gather_single(out, x)
    return out


def _scatter_coalesced(
    inputs: list[torch.Tensor], op: str, size: int, group: Any
) -> list[torch.Tensor]:
    outputs = [x.new_empty((x.shape[0] // size, *x.shape[1:])) for x in inputs]
    _group(group).reduce_scatter_single_coalesced(outputs, inputs, _operation(op))
    return outputs


def _scatter(x: torch.Tensor, op: str, size: int, group: Any) -> torch.Tensor:
    return _scatter_coalesced([x], op, size, group)[0]


def _scatter_out(
    x: torch.Tensor, op: str, size: int, group: Any, *, out: torch.Tensor
) -> torch.Tensor:
    _group(group).reduce_scatter_single(out, x, _operation(op))
    return out


def _all_to_all(
    x: torch.Tensor, outputs: Sequence[int], inputs: Sequence[int], group: Any
) -> torch.Tensor:
    out = x.new_empty((sum(outputs), *x.shape[1:]))
    _group(group).all_to_all_single(out, x, outputs, inputs)
    return out


def _shard_other_dim(x: torch.Tensor, gather_dim: int, shard_dim: int, group: Any) -> torch.Tensor:
    """Shards along one dim become shards along the other."""
    pieces = torch.stack(x.chunk(_group(group).size(), shard_dim))
    arrived = torch.empty_like(pieces)
    _group(group).all_to_all_single(arrived, pieces, [], [])
    return torch.cat(arrived.unbind(0), gather_dim)


def _ready(x: XlaTensor) -> XlaTensor:
    """A row has nothing to wait for."""
    return wrap(x.value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce_,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_reduce_coalesced_": _all_reduce_coalesced_,
    "broadcast": _broadcast,
    "broadcast_": _broadcast_,
    "all_gather_into_tensor": _gather,
    "all_gather_into_tensor_out": _gather_out,
    "all_gather_into_tensor_coalesced": _gather_coalesced,
    "reduce_scatter_tensor": _scatter,
    "reduce_scatter_tensor_out": _scatter_out,
    "reduce_scatter_tensor_coalesced": _scatter_coalesced,
    "all_to_all_single": _all_to_all,
    "wait_tensor": _ready,
    "_wrap_tensor_autograd": _ready,
}

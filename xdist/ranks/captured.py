"""Collectives inside graphs that torch captures: `torch.compile`, `make_fx`, export.

A captured graph cannot hold a row, so it holds the operator `torch.ops.xla.collective`, with the
number of what it computes. On device tensors it records that row; on fakes it tells the shapes.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from torch_xdist.core.record import dispatch
from torch_xdist.core.trace.operators import Op
from torch_xdist.ranks import collective_ops
from torch_xdist.releases import late_imports

_DECORATORS = "torch._dynamo.decorators"
_keep: list[Any] = []


def _record_again(tensors: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    name, function, key = collective_ops.CAPTURED[number]
    return list(collective_ops.record(name, function, tensors, key))


def _handle(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return _record_again(*args, **kwargs)


def _let_dynamo_see(decorators: ModuleType) -> None:
    """Dynamo does not look into this package: it enters these calls into its graph as they are."""
    decorators.allow_in_graph(
        [
            collective_ops.all_reduce,
            collective_ops.all_gather,
            collective_ops.reduce_scatter,
            collective_ops.all_to_all,
            collective_ops.collective_permute,
            collective_ops.collective_broadcast,
        ]
    )


def register() -> None:
    """Enter the operator; a second call changes nothing."""
    if _keep:
        return
    library = torch.library.Library("xla", "FRAGMENT")
    _keep.append(library)
    library.define("collective(Tensor[] tensors, int number) -> Tensor[]")
    torch.library.register_fake("xla::collective", _record_again, lib=library)
    dispatch.install({"xla.collective.default": _handle})
    late_imports.when_imported(_DECORATORS, _let_dynamo_see)

"""torch.distributed.tensor is imported by who has DTensors, not with the first tensor of a device.

The first operator on a tensor that Python dispatches has torch's C++ import the class DTensor, to
tell such tensors from others: with sympy half a second of a start (docs/benchmarks.md). It is given
a class that stands for DTensor and has no tensors. Where DTensor is imported, the class becomes one
of its bases: then its tensors are tensors of that class, and `isinstance` is what C++ asks.
"""

import sys
from types import ModuleType
from typing import Any

import torch

from torch_xdist.releases import late_imports, patches

_MODULE = "torch.distributed.tensor"
_BASES = "torch.distributed.tensor._api.DTensor.__bases__"


class StandsForDTensor(torch.Tensor):
    """What C++ takes for DTensor, until there is one; then a base of it."""

    __slots__ = ()


class _Asked(torch.Tensor):
    """A tensor that Python dispatches."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0]


class _StandIn(ModuleType):
    """In the place of torch's module, for as long as it takes C++ to look into it."""

    is_read = False

    @property
    def DTensor(self) -> type:
        self.is_read = True
        return StandsForDTensor


def register() -> None:
    """Let C++ know of the class, where it asks for one and torch's is not loaded."""
    if _MODULE in sys.modules or not patches.is_needed(_BASES):
        return
    tensor = torch.Tensor._make_wrapper_subclass(_Asked, (1,))  # type: ignore[attr-defined]
    module = sys.modules[_MODULE] = _StandIn(_MODULE)
    try:
        torch.ops.aten.detach.default(tensor)
    finally:
        del sys.modules[_MODULE]
    if module.is_read:
        late_imports.when_imported(f"{_MODULE}._api", _stand_behind)


def _stand_behind(api: ModuleType) -> None:
    """Make the class a base of DTensor."""
    # C++ compares it with a subclass's, to see whether that has one of its own.
    StandsForDTensor.__torch_dispatch__ = vars(api.DTensor)["__torch_dispatch__"]  # type: ignore[method-assign]
    patches.replace(_BASES, (StandsForDTensor,))

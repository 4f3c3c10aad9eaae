"""How many elements a mask selects, where torch's error or a result's shape depends on it.

`x[mask] = values` is one row whatever the mask holds. That the values are as many as the mask
selects only the mask's own values say: they are read, which cuts the trace where they are pending.

`x[mask]`, `masked_select` and `nonzero` need one number for the shape of their result. Where the
device is no CPU only that number comes to the host, and the rest are rows; on a CPU it is cheaper
to run them there, unless XLA_EXPERIMENTAL says otherwise.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import settings
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.devices.transfer import host_value
from torch_xdist.core.record.cpu_only import MASKS

_aten = torch.ops.aten


def check(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise torch's error where an `index_put` by one mask has another number of values."""
    named = dict(zip(("self", "indices", "values"), args)) | kwargs
    target, values = named["self"], named["values"]
    given = [(d, i) for d, i in enumerate(named["indices"]) if i is not None]
    if len(given) != 1 or given[0][1].dtype not in MASKS:
        return
    dim, mask = given[0]
    rank = target.dim() - mask.dim() + 1
    place = values.dim() - rank + dim
    if place < 0 or values.shape[place] == 1 or _is_symbolic(target, mask):
        return
    count = int((host_value(mask) if mask.__class__ is XlaTensor else mask).count_nonzero())
    if values.shape[place] != count:
        shape = [*target.shape[:dim], count, *target.shape[dim + mask.dim() :]]
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {shape}"
        )


def _is_symbolic(*tensors: Any) -> bool:
    """Whether a body is being recorded, where no tensor has values."""
    return any(t.__class__ is XlaTensor and t.value.trace.is_symbolic for t in tensors)


def selected(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a read by a mask as rows, once its size is read; None where the CPU serves."""
    select, word = _SELECTIONS.get(name, (None, ""))
    if select is None or not (word in settings.current().experimental or not _is_cpu()):
        return None
    return select(*args, **kwargs)


def _is_cpu() -> bool:
    return device.device_type() == "CPU"


def _places(of: torch.Tensor) -> torch.Tensor:
    """[n, dims]: where a tensor is not zero."""
    if of.__class__ is not XlaTensor:
        return of.nonzero()
    count: Any = of.count_nonzero()
    return _aten.nonzero_static(of, size=int(host_value(count)))


def _nonzero(self: torch.Tensor) -> torch.Tensor | None:
    return _places(self) if self.dim() else None


def _indexed(self: Any, indices: Sequence[torch.Tensor | None]) -> Any:
    places: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in MASKS:
            places.append(index)
            continue
        covered = self.shape[len(places) : len(places) + index.dim()]
        if not index.dim() or index.shape != covered:
            return None  # Dims of one element, or torch's error.
        places += _places(index).unbind(1)
    return _aten.index(self, places) if self.__class__ is XlaTensor else None


def _masked(self: torch.Tensor, mask: torch.Tensor) -> Any:
    if mask.dtype is not torch.bool:
        return None
    try:
        self, mask = torch.broadcast_tensors(self, mask)
    except RuntimeError:
        return None
    return _indexed(self, [mask])


# The function, and the word in XLA_EXPERIMENTAL.
_SELECTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "aten.index.Tensor": (_indexed, "nonzero"),
    "aten._unsafe_index.Tensor": (_indexed, "nonzero"),
    "aten.nonzero.default": (_nonzero, "nonzero"),
    "aten.masked_select.default": (_masked, "masked_select"),
}

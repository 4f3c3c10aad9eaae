"""How many elements a mask selects, where torch's error depends on it.

`x[mask] = values` is one row whatever the mask holds. That the values are as many as the mask
selects only the mask's own values say: they are read, which cuts the trace where they are pending.
"""

from collections.abc import Sequence
from typing import Any

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.devices.transfer import host_value
from torch_xdist.core.record.cpu_only import MASKS


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

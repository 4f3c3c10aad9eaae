"""How many elements a mask selects, where torch's error or a result's shape depends on it.

`x[mask] = values` is one row whatever the mask holds. That the values are as many as the mask
selects only the mask's own values say: they are read, which cuts the trace where they are pending.

`x[mask]`, `masked_select` and `nonzero` need one number for the shape of their result. Where a mask
follows from what came from the host its places are found there and go to the device, and the result
is a row: the nodes that a graph's mask takes for training. Else, where the device is no CPU, only
that number comes to the host, and the rest are rows; on a CPU it is cheaper to run them there,
unless XLA_EXPERIMENTAL says otherwise.

Those rows run at once, with places for a power of two of elements, so that counts that change at
each step share a few programs. What the user gets is cut to the count.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import settings
from torch_xdist.core.devices import device, host_rows
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.devices.transfer import host_value, to_trace, value_of
from torch_xdist.core.record.cpu_only import MASKS
from torch_xdist.core.run.device_trace import buffer_of

_aten = torch.ops.aten
_Indices = Sequence[torch.Tensor | None]
# Fewer are not worth a program of their own.
_LEAST_PLACES = 8


def check(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise torch's error where an `index_put` by one mask has another number of values."""
    named = dict(zip(("self", "indices", "values"), args)) | kwargs
    target, values = named["self"], named["values"]
    given = [(d, i) for d, i in enumerate(named["indices"]) if i is not None]
    if len(given) != 1 or given[0][1].dtype not in MASKS:
        return
    dim, mask = given[0]
    if mask.shape != target.shape[dim : dim + mask.dim()]:
        # Another error, for the plan of the call to say.
        return
    rank = target.dim() - mask.dim() + 1
    place = values.dim() - rank + dim
    if place < 0 or values.shape[place] == 1 or _is_symbolic(target, mask):
        return
    if mask.__class__ is XlaTensor:
        known = host_rows.known([mask.value])
        mask = host_value(mask) if known is None else known[0]
    count = int(mask.count_nonzero())
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
    """The result of a read by a mask as rows, once its size is known; None where the CPU serves."""
    if name not in _WORDS:
        return None
    if name != "aten.nonzero.default":
        known = _selected(name, args, kwargs, _of_known_masks)
        if known is not None:
            return known
    if device.choices().is_host and _WORDS[name] not in settings.current().experimental:
        return None
    return _selected(name, args, kwargs, _indexed)


def _selected(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], select: Callable[..., Any]
) -> Any:
    if name == "aten.nonzero.default":
        return _nonzero(*args, **kwargs)
    if name == "aten.masked_select.default":
        return _masked(select, *args, **kwargs)
    return select(*args, **kwargs)


def _counted(of: Any) -> tuple[torch.Tensor, int]:
    """[size, dims]: where a tensor is not zero, in `count` rows, then zeros; and the count."""
    if of.__class__ is not XlaTensor:
        places = of.nonzero()
        return places, len(places)
    found: Any = of.count_nonzero()
    count = int(host_value(found))
    size = min(max(_LEAST_PLACES, 1 << (count - 1).bit_length()), of.numel()) if count else 0
    return _aten.nonzero_static(of, size=size, fill_value=0), count


def _first(of: Any, count: int, dim: int = 0) -> torch.Tensor:
    """The first `count` along a dim of a dense tensor, which is computed here."""
    if of.shape[dim] == count:
        return of
    if not device.choices().is_host:
        buffer_of(of.value)
        return _aten.slice_copy(of, dim, 0, count)
    # The memory of a CPU device is the host's: no program is needed.
    return wrap(value_of(host_value(of).narrow(dim, 0, count), of.value.trace))


def _places(of: Any) -> torch.Tensor:
    """[n, dims]: where a tensor is not zero, each dim's places side by side as torch has them."""
    found, count = _counted(of)
    return _first(found.t(), count, 1).t()


def _nonzero(self: torch.Tensor) -> torch.Tensor | None:
    return _places(self) if self.dim() else None


def _indexed(self: Any, indices: _Indices) -> Any:
    if self.__class__ is not XlaTensor or not _cover(self, indices):
        return None
    if len(indices) == 1:
        found, count = _counted(indices[0])
        rows: Any = _aten.index(self, found.unbind(1))
        # Those of a transposed tensor may lie otherwise, by a rule of torch's.
        if rows.is_contiguous():
            return _first(rows, count)
    return _aten.index(self, _with_places(indices, lambda mask: _places(mask).t()))


def _of_known_masks(self: Any, indices: _Indices) -> Any:
    """Nothing is cut, as the host knows what the masks hold; None where it does not."""
    if self.__class__ is not XlaTensor or _is_symbolic(self) or not _cover(self, indices):
        return None
    masks = [i for i in indices if i is not None and i.dtype in MASKS]
    on_device = [mask.value for mask in masks if mask.__class__ is XlaTensor]
    known = host_rows.known(on_device) if on_device else []
    if known is None:
        return None
    given = iter(known)
    found = [(next(given) if m.__class__ is XlaTensor else m).nonzero().t() for m in masks]
    if not host_rows.allows_shapes([p.shape[1] for p in found], "masks"):
        return None
    places = iter([to_trace(p, self.value.trace) for p in found])
    return _aten.index(self, _with_places(indices, lambda mask: next(places)))


def _cover(self: torch.Tensor, indices: _Indices) -> bool:
    """Whether each mask is as large as its dims: else these are of one element, or torch raises."""
    dim = 0
    for index in indices:
        is_mask = index is not None and index.dtype in MASKS
        rank = index.dim() if index is not None and is_mask else 1
        if is_mask and (not rank or index.shape != self.shape[dim : dim + rank]):  # type: ignore[union-attr]
            return False
        dim += rank
    return True


def _with_places(indices: _Indices, places_of: Callable[[Any], Any]) -> list[Any]:
    """Indices with a mask's places, [dims, n], in its stead."""
    found: list[Any] = []
    for index in indices:
        is_mask = index is not None and index.dtype in MASKS
        found += places_of(index).unbind() if is_mask else [index]
    return found


def _masked(select: Callable[..., Any], self: torch.Tensor, mask: torch.Tensor) -> Any:
    if mask.dtype is not torch.bool:
        return None
    try:
        self, mask = torch.broadcast_tensors(self, mask)
    except RuntimeError:
        return None
    return select(self, [mask])


# The word in XLA_EXPERIMENTAL.
_WORDS = {
    "aten.index.Tensor": "nonzero",
    "aten._unsafe_index.Tensor": "nonzero",
    "aten.nonzero.default": "nonzero",
    "aten.masked_select.default": "masked_select",
}

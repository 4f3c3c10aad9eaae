"""The step counters of optimizers, CPU tensors of one number each, that rise together.

torch adds one to each of them, which for the parameters of a model takes as long as all else that a
replay does. Here they become neighbours in one storage, so that one addition raises all; for
everybody else each stays the tensor that it was.
"""

from collections.abc import Sequence

import torch

# How often tensors are made neighbours, where something else moves them away.
_MOST_MOVES = 4


class Counters:
    """Tensors that rise by one at each call."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._places = {id(tensor): place for place, tensor in enumerate(tensors)}
        self._together: torch.Tensor | None = None
        self._addresses: list[int] = []
        self._moves = 0

    def values(self) -> list[float]:
        """What they are now."""
        if not self._tensors:
            return []
        if [tensor.data_ptr() for tensor in self._tensors] != self._addresses:
            self._gather()
        if self._together is not None:
            return self._together.tolist()  # type: ignore[no-any-return]
        return [tensor.item() for tensor in self._tensors]

    def place(self, tensor: torch.Tensor) -> int:
        """Where the value of one stands among all."""
        return self._places[id(tensor)]

    def add(self, number: int) -> None:
        """Add to each; `values` was asked before."""
        if self._together is not None:
            self._together.add_(number)
        elif self._tensors:
            torch._foreach_add_(self._tensors, number)

    def _gather(self) -> None:
        """Make them neighbours in one storage, where they are of one kind."""
        first = self._tensors[0]
        size = first.element_size()
        self._together = None
        kinds = {(tensor.dtype, tensor.device.type) for tensor in self._tensors}
        if len(kinds) > 1 or self._moves == _MOST_MOVES:
            return
        with torch.no_grad():
            start, addresses = first.data_ptr(), [t.data_ptr() for t in self._tensors]
            if addresses != [start + size * i for i in range(len(addresses))]:
                self._moves += 1
                storage = torch.stack(self._tensors).untyped_storage()
                for place, tensor in enumerate(self._tensors):
                    tensor.set_(storage, place, (), ())  # type: ignore[call-overload]
            room = first.untyped_storage(), first.storage_offset(), (len(addresses),), (1,)
            together = torch.empty(0, dtype=first.dtype, device="cpu")
            self._together = together.set_(*room)  # type: ignore[call-overload]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]

"""Move host data to a device, by torch_xla's name."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.arena import DataWrapper, ToXlaTensorArena
from torch_xdist.core.devices import transfer


def send_cpu_data_to_device(
    datas: Sequence[Any] | torch.Tensor | DataWrapper,
    device: str | torch.device,
    input_sharding: Any = None,
) -> Any:
    """The data with its tensors on `device`, as a list; a single tensor gives a list of one.

    What needs gradients does so there as well.

    Args:
        datas: batches: tensors, or nested lists and dicts of them; or one `DataWrapper`, of which
            its `from_tensors` gives the result.
        input_sharding: an object with `apply(tensor)`, called on each moved tensor; what it
            returns, unless None, takes the tensor's place.
    """

    def move(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        moved = transfer.all_to_device(tensors, device)
        for tensor, source in zip(moved, tensors):
            if source.requires_grad:
                tensor.requires_grad_()
        if input_sharding is None:
            return moved  # type: ignore[return-value]
        # Of a minibatch it is the batch that all processes have together.
        whole = [input_sharding.apply(tensor) for tensor in moved]
        return [tensor if cut is None else cut for tensor, cut in zip(moved, whole)]

    arena = ToXlaTensorArena(move, lambda v: isinstance(v, torch.Tensor) and v.is_cpu)
    if isinstance(datas, DataWrapper):
        return arena.transform(datas)
    return arena.transform([datas] if isinstance(datas, torch.Tensor) else list(datas))

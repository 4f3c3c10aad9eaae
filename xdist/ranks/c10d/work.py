"""Works of c10d: what a call gives back, and how results reach the caller's tensors.

Rows of the trace are complete as soon as they are recorded, so their works are finished from the
start; only a recv has something to wait for.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.ranks import collective_ops
from torch_xdist.ranks.tensor_messages import fill, received


class Receiving(dist.Work):
    """A recv; the message is taken at the first wait."""

    def __init__(
        self,
        tensors: list[torch.Tensor],
        ranks: Sequence[int],
        source: int | None,
        subject: str,
    ) -> None:
        super().__init__()
        self._tensors, self._ranks = tensors, ranks
        self._source, self._subject = source, subject
        self._found = -1

    def wait(self, timeout: Any = None) -> bool:
        """Block until the message is in the tensors."""
        if self._found < 0:
            rank, values = received(self._source, self._subject)
            fill(self._tensors, values)
            self._found = self._ranks.index(rank)
        return True

    def is_completed(self) -> bool:
        """Whether the message was taken."""
        return self._found >= 0

    def is_success(self) -> bool:
        """Whether the message was taken."""
        return self._found >= 0

    def source_rank(self) -> int:
        """The member it came from."""
        return self._found

    _source_rank = source_rank


def on_device(tensors: Sequence[torch.Tensor]) -> TypeGuard[Sequence[XlaTensor]]:
    """Whether these are device tensors; one CPU tensor makes it a matter of the hosts.

    So are integers where devices are described alone: nothing would be computed of the counts and
    places that DistributedDataParallel compares.
    """
    if not all(tensor.__class__ is XlaTensor for tensor in tensors):
        return False
    return not device.are_described() or any(tensor.is_floating_point() for tensor in tensors)


def done(targets: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> dist.Work:
    for target, result in zip(targets, results):
        pair = [target, result]
        if on_device(pair) and target.shape == result.shape and target.dtype == result.dtype:
            collective_ops.overwrite(pair[:1], pair[1:])
        else:
            fill([target], [result])
    return finished(targets)


def finished(tensors: Sequence[torch.Tensor]) -> dist.Work:
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(list(tensors))
    return _create_work_from_future(future)

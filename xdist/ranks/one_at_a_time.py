"""Work that the ranks of one host do one after another, to spare its memory."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from torch_xdist import world
from torch_xdist.ranks import rendezvous

T = TypeVar("T")


class MpSerialExecutor:
    """Runs a function in one rank of a host at a time; every rank of it must call `run`.

    Make one per function before `spawn`, or inside every rank.
    """

    def run(self, fn: Callable[[], T]) -> T:
        """Call `fn` when it is this rank's turn, and return its result."""
        here = world.current()
        result: T
        for turn in range(here.local_world_size):
            if turn == here.local_rank:
                result = fn()
            rendezvous.rendezvous(f"{type(self).__name__} turn {turn}")
        return result


class MpModelWrapper:
    """A model made once, before `spawn`, that the ranks of a host move to their devices in turn.

    Args:
        model: a module on the CPU.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def to(self, device: Any) -> nn.Module:
        """Move the model to this rank's device, one rank of the host at a time."""
        MpSerialExecutor().run(lambda: self._model.to(device))
        return self._model

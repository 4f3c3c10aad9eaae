"""`MpDeviceLoader`: the loader of a training script, iterated once per epoch."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch_xdist import world
from torch_xdist.loaders import sharing
from torch_xdist.loaders.one_pass import InputWait, Pass
from torch_xdist.loaders.pace import Pace
from torch_xdist.loaders.parallel import Batches, Device, ParallelLoader
from torch_xdist.loaders.position import Position, Start, position_of


class MpDeviceLoader:
    """A loader whose batches arrive on a device; iterate it as often as the loader itself.

    Each pass reads ahead in threads of its own, which end with the pass, with a `break`, or when
    the iterator is let go. Batches that are quicker to make than to hand between threads (0.5 ms)
    are made on the spot instead. The data is not sharded between ranks: give the loader a
    `DistributedSampler`.

    Args:
        loader: any iterable of batches.
        device: where the batches go.
        kwargs: parameters of `ParallelLoader`.
    """

    def __init__(self, loader: Batches, device: Device, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs
        self._pace = Pace()
        self._position = Position()
        self._resumed = False
        self._wait = InputWait()
        self._running: Callable[[], ParallelLoader | None] = lambda: None

    def __iter__(self) -> Iterator[Any]:
        """A new pass; one still under way is closed."""
        self.close()
        if self._position.epoch < 0:
            sharing.warn_if_shared(self._loader, world.world_size())
        start = self._begin()
        self._wait = InputWait()
        one_pass = Pass(
            pace=self._pace,
            adapts=True,
            position=self._position,
            start=start,
            wait=self._wait,
        )
        running = ParallelLoader(
            self._loader, [self._device], **self._parallel_loader_kwargs, _pass=one_pass
        )
        # Held weakly: the pass ends when its iterator is let go.
        self._running = weakref.ref(running)
        return iter(running.per_device_loader(self._device))

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def _begin(self) -> Start | None:
        if self._resumed:
            self._resumed = False
            return self._position.resume(self._loader)
        # A new object: the iterator of a pass that was left may still count in the old one.
        self._position = self._position.following(self._loader)
        return None

    @property
    def input_wait(self) -> InputWait:
        """How long the loop waited in the newest pass; its `verdict()` says what that means."""
        return self._wait

    def state_dict(self) -> dict[str, Any]:
        """Where the newest pass stands: batches handed to the loop, and how its order was drawn."""
        return self._position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass begin where `state` stands, with the next batch of the same order.

        A plain DataLoader over indexed samples skips the samples unread; any other loader makes the
        batches again and drops them. Raises ArgumentError for what no state_dict wrote.
        """
        self._position = position_of(state)
        self._resumed = not self._position.finished

    def close(self) -> None:
        """End the pass under way, if there is one, and its threads."""
        running = self._running()
        if running is not None:
            running.close()

"""The loaders of one pass: `ParallelLoader`, and `PerDeviceLoader`, its iterator for one device.

Asking for a batch is a step boundary: `next` cuts the trace of the step before it takes the batch.
So a loop of N batches cuts N + 2 times: before the first batch (what was recorded while the model
was built must not become part of the first step), after each of the N steps, and at the end.
"""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from torch_xdist import world
from torch_xdist.core.devices import steps, transfer
from torch_xdist.core.run import analysis
from torch_xdist.loaders import sharing
from torch_xdist.loaders.errors import ArgumentError
from torch_xdist.loaders.feed import (
    CLOSE_WAIT_S,
    END,
    AdaptiveFeed,
    MoveBatch,
    MoveTensors,
    ThreadedFeed,
    mover,
)
from torch_xdist.loaders.one_pass import Pass
from torch_xdist.loaders.padding import Buckets, PadTo, PadValue, padding
from torch_xdist.loaders.sharding import sharded
from torch_xdist.loaders.source import Made, Source, stacks_samples
from torch_xdist.loaders.uneven import Exchange, Uneven, agreed, check_mode

Batches = Iterable[Any]
Device = torch.device | str


class ParallelLoader:
    """One pass over a loader, handed out to one or several devices; batch k goes to device k % n.

    Reading starts at construction. An incomplete last round (fewer batches than devices) is
    dropped.

    Args:
        cpu_loader: any iterable of batches; `loader` is its old name.
        devices: the devices, such as ["xla:0"].
        batchdim: the dim that counts samples; looked at by `fixed_batch_size` only.
        batches_per_execution: steps in one program: the trace is cut every so many batches.
        loader_prefetch_size: batches that may wait on the host, for each device.
        device_prefetch_size: batches that may wait on each device.
        host_to_device_transfer_threads: threads that move batches, for each device; order is kept.
        input_sharding: a spec with `apply(tensor)`, or a dict of them by key of the batch.
        fixed_batch_size: stop before the first batch of another size than the first.
        numbered: hand out (number on this device, batch), as torch_xla did in 2019.
        pad_to: sizes to pad to, by dim (an int: for dim 1).
        buckets: sizes of which the smallest that fits is padded to, by dim (a list: for dim 1).
        pad_value: what fills, for all or by key of the batch.
        uneven: what happens where ranks have different numbers of batches: "error", "drop", "pad";
            every rank must then run through its loader. None: the ranks do not talk.
        move: gives a list of CPU tensors on a device. None: copies of them; without a copy where
            the loader is known to have made new ones.
        exchange: gives this rank's integer to all ranks and returns theirs.

    Raises: ArgumentError for parameters that cannot work. The user's loader's own exceptions are
        raised by `next`, after the batches that came before.
    """

    def __init__(
        self,
        cpu_loader: Batches | None = None,
        devices: Sequence[Device] = (),
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        *,
        loader: Batches | None = None,
        fixed_batch_size: bool = False,
        numbered: bool = False,
        pad_to: PadTo = None,
        buckets: Buckets = None,
        pad_value: PadValue = 0.0,
        uneven: Uneven | None = None,
        move: MoveTensors | None = None,
        exchange: Exchange | None = None,
        _pass: Pass | None = None,
    ) -> None:
        if isinstance(batches_per_execution, bool):
            # Up to torch_xla 1.7 the fourth parameter was fixed_batch_size.
            fixed_batch_size, batches_per_execution = batches_per_execution, 1
        self._loader = _given(cpu_loader if loader is None else loader)
        self._devices = [torch.device(device) for device in devices]
        _check_sizes(
            devices=len(self._devices),
            batches_per_execution=batches_per_execution,
            loader_prefetch_size=loader_prefetch_size,
            device_prefetch_size=device_prefetch_size,
            host_to_device_transfer_threads=host_to_device_transfer_threads,
        )
        check_mode(uneven)
        self._batches_per_execution = batches_per_execution
        self._input_sharding = input_sharding
        self._numbered = numbered
        self._pass = _pass or Pass()
        source = Source(
            self._loader,
            prepare=padding(pad_to, buckets, pad_value),
            agree=_agreement(uneven, exchange),
            same_size_dim=batchdim if fixed_batch_size else None,
            start=self._pass.start,
            pace=self._pass.pace,
        )
        if move is None:
            owned = stacks_samples(self._loader)
            move = partial(transfer.all_to_device, owned=owned, now=input_sharding is None)
        self._feed = self._started(
            source,
            [sharded(mover(move, device), input_sharding) for device in self._devices],
            host_size=loader_prefetch_size,
            device_size=device_prefetch_size,
            movers=host_to_device_transfer_threads,
        )
        # The threads end when nobody can ask for a batch any more.
        weakref.finalize(self, self._feed.close).atexit = False

    def _started(
        self, source: Source, moves: list[MoveBatch], **sizes: int
    ) -> AdaptiveFeed | ThreadedFeed:
        """The feed of this pass, with threads unless the batches are quicker without."""
        pace = self._pass.pace
        threaded = partial(ThreadedFeed, source, moves, pace=pace, **sizes)
        if self._pass.adapts and pace.is_quick() and len(moves) == 1:
            return AdaptiveFeed(source, moves[0], pace, threaded)
        return threaded()

    @property
    def batches_per_execution(self) -> int:
        """Steps in one program."""
        return self._batches_per_execution

    def send_cpu_data_to_device(self, batches: Sequence[Any], device: Device) -> list[Any]:
        """These batches on a device, cut by `input_sharding` as those of the loader are."""
        move = partial(transfer.all_to_device, now=self._input_sharding is None)
        send = sharded(mover(move, torch.device(device)), self._input_sharding)
        return [send(batch) for batch in batches]

    def per_device_loader(self, device: Device) -> "PerDeviceLoader":
        """The iterator over the batches of one device. Raises ArgumentError for an unknown one."""
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """How many batches each device gets: those of the loader divided by the devices."""
        return len(self._loader) // len(self._devices)  # type: ignore[arg-type]

    def next_item(self, device: Device) -> Any:
        """The next batch of a device, without a cut; None at the end."""
        made = self.take(self.index_of(torch.device(device)))
        return None if made is END else made.batch

    def index_of(self, device: torch.device) -> int:
        """The place of a device among this loader's. Raises ArgumentError for an unknown one."""
        if device in self._devices:
            return self._devices.index(device)
        alone = [i for i, known in enumerate(self._devices) if known.type == device.type]
        if len(alone) == 1 and None in (device.index, self._devices[alone[0]].index):
            return alone[0]
        raise ArgumentError(
            f"ParallelLoader: no device {device} here; it was made for"
            f" {', '.join(map(str, self._devices))}"
        )

    def take(self, index: int) -> Made:
        """The next batch of the device at `index` with what is known about it, or END."""
        return self._feed.get(index)

    def close(self) -> None:
        """Stop reading ahead and wait for the threads (a batch being made is finished first)."""
        self._feed.close(CLOSE_WAIT_S)


class PerDeviceLoader:
    """The batches of one device, once. `next` cuts the trace, then waits for the batch."""

    def __init__(self, loader: ParallelLoader, device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self._index = loader.index_of(device)
        self._number = 0
        self._ended = False
        self._left_s = 0.0

    def __iter__(self) -> "PerDeviceLoader":
        return self

    def __next__(self) -> Any:
        return self.next()

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def next(self) -> Any:
        """The next batch. Raises StopIteration at the end, or what the user's loader raised."""
        if self._ended:
            raise StopIteration
        loader = self._loader
        if steps.get_tracer_marked_step():
            steps.set_tracer_marked_step(False)
        elif self._number % loader.batches_per_execution == 0:
            steps.end_step(analysis.LOADER, device_=self._device)
        asked_s = time.perf_counter()
        if self._number:
            loader._pass.pace.stepped(asked_s - self._left_s)
        made = loader.take(self._index)
        loader._pass.wait.add(asked_s, batches=made is not END)
        if made is END:
            self._end()
        number, self._number = self._number, self._number + 1
        loader._pass.position.advance(made.random)
        self._left_s = time.perf_counter()
        return (number, made.batch) if loader._numbered else made.batch

    def _end(self) -> None:
        self._ended = True
        steps.end_step(analysis.LOADER, device_=self._device)
        self._loader._pass.end()
        raise StopIteration

    def close(self) -> None:
        """Stop reading ahead, for all devices."""
        self._loader.close()


def _given(loader: Batches | None) -> Batches:
    if loader is None or (not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__")):
        raise ArgumentError(
            f"ParallelLoader: the loader is {loader!r}; it needs an iterable of batches,"
            " such as a torch.utils.data.DataLoader"
        )
    return loader


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ArgumentError(f"ParallelLoader: {name} is {size}; it needs at least 1")


def _agreement(
    uneven: Uneven | None, exchange: Exchange | None
) -> Callable[[Iterator[Any]], Iterator[Any]] | None:
    if uneven is None:
        return None
    if exchange is None:
        if world.process_count() == 1:
            return None
        exchange = sharing.exchange()
    return partial(agreed, exchange=exchange, mode=uneven)

"""Feeds: the stages between the user's loader and the training loop.

`ThreadedFeed` reads ahead: one thread makes batches, one or more move them to each device, and the
loop takes them in order. `AdaptiveFeed` makes and moves each batch when it is asked for, as long as
batches are quick, and reads ahead from the first slow one on.
A feed gives `Made` batches, then `END` for ever; an error comes after the batches made before it.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any, Final

import torch

from torch_xdist.loaders.errors import BatchError
from torch_xdist.loaders.ordered_queue import Closed, OrderedQueue
from torch_xdist.loaders.pace import Pace
from torch_xdist.loaders.source import Made, Source
from torch_xdist.loaders.structure import mapped, tensors
from torch_xdist.loaders.threads import FeedThread, complete_own_work

END: Final = Made(None, None)
CLOSE_WAIT_S = 10.0

# These checks run for every batch: maps over C functions cost a fifth of generators.
_TENSORS = {torch.Tensor}
_IS_ON_CPU = attrgetter("is_cpu")
# Gives a batch on one device.
MoveBatch = Callable[[Any], Any]
# Gives CPU tensors on a device, in their order.
MoveTensors = Callable[[list[torch.Tensor], torch.device], Sequence[torch.Tensor]]


def mover(move: MoveTensors, device: torch.device) -> MoveBatch:
    """Gives a batch on `device`, moved in one call; names the tensor it cannot move."""

    def moved(batch: Any) -> Any:
        kind = type(batch)
        if (kind is list or kind is tuple) and _are_different_tensors(batch):
            return list(_moved(move, list(batch), device, batch))
        if kind is dict and _are_different_tensors(batch.values()):
            return dict(zip(batch, _moved(move, list(batch.values()), device, batch)))
        found: dict[int, torch.Tensor] = {}

        def note(tensor: torch.Tensor, _: str) -> None:
            if tensor.device.type != device.type:
                found[id(tensor)] = tensor

        mapped(batch, note)
        results = dict(zip(found, _moved(move, list(found.values()), device, batch)))
        return mapped(batch, lambda tensor, _: results.get(id(tensor), tensor))

    return moved


def _are_different_tensors(items: Collection[Any]) -> bool:
    """Whether these are tensors, each once, as collating pairs or dicts makes them."""
    return set(map(type, items)) == _TENSORS and len(set(map(id, items))) == len(items)


def _moved(
    move: MoveTensors, found: list[torch.Tensor], device: torch.device, batch: Any
) -> Sequence[torch.Tensor]:
    try:
        if set(map(_IS_ON_CPU, found)) <= {True}:
            return move(found, device)
    except Exception as error:
        raise _immovable(move, found, device, batch, error) from error
    raise _immovable(move, found, device, batch, None)


def _immovable(
    move: MoveTensors,
    found: list[torch.Tensor],
    device: torch.device,
    batch: Any,
    error: Exception | None,
) -> BatchError:
    """The error for the first tensor that cannot be moved alone."""
    culprit, reason = None, str(error)
    for tensor in found:
        try:
            if tensor.device.type != "cpu":
                raise BatchError(f"it lies on {tensor.device}")
            move([tensor], device)
        except Exception as alone:
            culprit, reason = tensor, str(alone)
            break
    path = next((path for path, tensor in tensors(batch) if tensor is culprit), "")
    what = "" if culprit is None else f", a {culprit.dtype} tensor of shape {tuple(culprit.shape)},"
    return BatchError(
        f"loader: batch{path}{what} cannot be moved to {device}: {reason}; give dense CPU tensors"
        " of dtypes the device has"
    )


class Failure:
    """An exception on its way from a thread to the training loop."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class ThreadedFeed:
    """Reads ahead in threads; batch k goes to device k % n, and an incomplete last round is
    dropped.

    The threads hold the queues and the source, never the feed: a feed that is let go is closed
    by its owner's finalizer, and its threads end.

    Args:
        source: the batches.
        moves: one function for each device.
        host_size: batches that may wait on the host for each device.
        device_size: batches that may wait on each device.
        movers: threads that move batches, for each device.
        pace: takes the time of each move.
    """

    def __init__(
        self,
        source: Source,
        moves: list[MoveBatch],
        *,
        host_size: int,
        device_size: int,
        movers: int,
        pace: Pace,
    ) -> None:
        self._pid = os.getpid()
        host = [OrderedQueue(host_size) for _ in moves]
        self._ready = [OrderedQueue(device_size) for _ in moves]
        self._queues = [*host, *self._ready]
        self._ended = [False for _ in moves]
        targets = [partial(_read, source, host)]
        for move, waiting, ready in zip(moves, host, self._ready):
            targets += [partial(_transfer, waiting, ready, move, pace)] * movers
        stop = partial(_close, self._queues)
        self._threads = [FeedThread(f"xla-loader-{i}", t, stop) for i, t in enumerate(targets)]
        for thread in self._threads:
            thread.start()

    def get(self, index: int) -> Made:
        """The next batch of device `index`, or END. Raises what the loader or a move raised."""
        if self._ended[index]:
            return END
        try:
            _, item = self._ready[index].get()
        except Closed:
            item = END
        if isinstance(item, Failure):
            self.close()
            self._ended = [True for _ in self._ended]
            try:
                raise item.error
            finally:
                # The traceback holds this frame: no cycle, so that it goes when it is handled.
                del item
        if item is END:
            self._ended[index] = True
        return item

    def close(self, wait_s: float = 0.0) -> None:
        """Stop the threads, drop what was read ahead, and wait for their end up to `wait_s`."""
        if os.getpid() != self._pid:
            # In a forked worker: the threads are not here, and their locks may be held for ever.
            return
        _close(self._queues)
        if wait_s:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(wait_s)


def _close(queues: Iterable[OrderedQueue]) -> None:
    for queue in queues:
        queue.close()


def _read(source: Source, queues: list[OrderedQueue]) -> None:
    """Make batches and hand them out in rounds; the body of the reading thread."""
    number = 0
    last: Made | Failure = END
    try:
        while len(made := _round(source, len(queues))) == len(queues):
            complete_own_work()
            for queue, item in zip(queues, made):
                queue.put(number, item)
            number += 1
            del made, item
    except Closed:
        return
    except BaseException as error:
        last = Failure(error)
    finally:
        source.close()
    _put_last(queues, number, last)
    del last


def _round(source: Source, size: int) -> list[Made]:
    return [made for _, made in zip(range(size), source)]


def _put_last(queues: list[OrderedQueue], number: int, last: Made | Failure) -> None:
    try:
        for queue in queues:
            queue.put(number, last)
    except Closed:
        pass


def _transfer(waiting: OrderedQueue, ready: OrderedQueue, move: MoveBatch, pace: Pace) -> None:
    """Move batches from one queue to the other; the body of a transferring thread."""
    try:
        while True:
            number, item = waiting.get()
            last = item is END or isinstance(item, Failure)
            if not last:
                try:
                    item = _move_timed(item, move, pace)
                except BaseException as error:
                    item, last = Failure(error), True
            ready.put(number, item)
            del item
            if last:
                # The other threads of this device have nothing more to come.
                waiting.close()
                return
    except Closed:
        return


def _move_timed(made: Made, move: MoveBatch, pace: Pace) -> Made:
    started_s = perf_counter()
    moved = Made(move(made.batch), made.random)
    pace.moved(perf_counter() - started_s)
    return moved


class AdaptiveFeed:
    """Makes batches on the thread that asks, for one device, and becomes threaded if they are slow.

    Args:
        source, move, pace: as for `ThreadedFeed`, with one function.
        threaded: makes the feed that goes on with the rest of the source.
    """

    def __init__(
        self, source: Source, move: MoveBatch, pace: Pace, threaded: Callable[[], ThreadedFeed]
    ) -> None:
        self._source = source
        self._move = move
        self._pace = pace
        self._make_threaded = threaded
        self._threaded: ThreadedFeed | None = None

    def get(self, index: int) -> Made:
        """The next batch, or END. Raises what the loader or a move raised."""
        if self._threaded is not None:
            return self._threaded.get(index)
        made = next(self._source, END)
        if made is END:
            self._source.close()
            return END
        moved = _move_timed(made, self._move, self._pace)
        if not self._pace.is_quick():
            self._threaded = self._make_threaded()
        return moved

    def close(self, wait_s: float = 0.0) -> None:
        """Drop the user's iterator, or end the threads."""
        if self._threaded is None:
            self._source.close()
        else:
            self._threaded.close(wait_s)

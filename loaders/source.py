"""One pass over the user's loader: opened on the calling thread, read by whoever feeds the devices.

Opening forks the workers of a `DataLoader`. The runtime has threads by then, so the fork is made as
safe as one from a threaded process can be: on the thread that asked, while the feed has no thread
yet, with everything inherited frozen, so that a worker's garbage collector never touches a device
buffer. That is why jax's warning about forks is silenced for this one call; a loader with its own
`multiprocessing_context` is left as it is.
"""

import copy
import gc
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from torch_xdist.loaders.errors import BatchError
from torch_xdist.loaders.pace import Pace
from torch_xdist.loaders.position import Start
from torch_xdist.loaders.structure import tensors

_WATCHED = 8  # batches after which a dataset that drew no number is taken to draw none


class Made(NamedTuple):
    """A batch on the host, and torch's random state after it where the dataset draws from it."""

    batch: Any
    random: torch.Tensor | None


class Source:
    """The batches of one pass, as `Made`.

    Args:
        loader: any iterable of batches.
        prepare: run on each batch, such as a padding.
        agree: wraps the batches, such as an agreement between ranks.
        same_size_dim: stop before the first batch whose size in this dim differs from the first's.
        start: where to begin.
        pace: takes the time of each batch.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        prepare: Callable[[Any], Any] | None = None,
        agree: Callable[[Iterator[Any]], Iterator[Any]] | None = None,
        same_size_dim: int | None = None,
        start: Start | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace or Pace()
        self._prepare = prepare
        self._same_size_dim = same_size_dim
        self._size: int | None = None
        self._count = 0
        self._random: torch.Tensor | None = None
        self._draws = False
        self._in_process = not getattr(loader, "num_workers", 0)
        self._iterator, self._first = _open(loader, start)
        made: Iterator[Made] = iter(self._next, None)  # type: ignore[arg-type]
        self._made = made if agree is None else agree(made)

    def __iter__(self) -> Iterator[Made]:
        return self

    def __next__(self) -> Made:
        return next(self._made)

    def _next(self) -> Made | None:
        started_s = time.perf_counter()
        try:
            batch = self._first.popleft() if self._first else next(self._iterator)
        except StopIteration:
            return None
        if self._prepare is not None:
            batch = self._prepare(batch)
        if self._same_size_dim is not None and not self._has_same_size(batch):
            return None
        made = Made(batch, self._random_after())
        self._pace.made(time.perf_counter() - started_s, first=self._count == 0)
        self._count += 1
        return made

    def _has_same_size(self, batch: Any) -> bool:
        dim = self._same_size_dim
        sizes = {t.shape[dim] for _, t in tensors(batch) if t.ndim > dim}  # type: ignore[operator, index]
        if len(sizes) > 1:
            raise BatchError(
                f"loader: the tensors of a batch have sizes {sorted(sizes)} in dim {dim};"
                " fixed_batch_size=True needs one size, or another batchdim"
            )
        size = sizes.pop() if sizes else None
        if self._size is None:
            self._size = size
        return size == self._size

    def _random_after(self) -> torch.Tensor | None:
        """torch's state, where the dataset was seen to draw from it in its first batches."""
        if not self._in_process or (self._count > _WATCHED and not self._draws):
            return None
        state = torch.get_rng_state()
        before, self._random = self._random, state
        if not self._draws and before is not None:
            self._draws = not torch.equal(before, state)
        return state if self._draws else None

    def close(self) -> None:
        """End the user's iterator, and with it the workers of this pass."""
        self._made = iter(())
        self._first.clear()
        iterator, self._iterator = self._iterator, iter(())
        if hasattr(iterator, "close"):
            iterator.close()
        elif not getattr(iterator, "_persistent_workers", True):
            # Left to the garbage collector (an exception may hold the iterator), it takes 5 s.
            getattr(iterator, "_shutdown_workers", lambda: None)()


def _open(loader: Iterable[Any], start: Start | None) -> tuple[Iterator[Any], deque[Any]]:
    """The iterator at `start`, and the batches already taken from it."""
    if start is None:
        return _iterate(loader), deque()
    with start.random_state(loader):
        if _is_indexed(loader):
            return _iterate_rest(loader, start.batches), deque()
        iterator = _iterate(loader)
        for _ in islice(iterator, start.batches):
            pass
        # A sampler draws its order with the first batch, so that one must be made in here.
        return iterator, deque(islice(iterator, 0 if start.batches else 1))


def _iterate(loader: Iterable[Any]) -> Iterator[Any]:
    if not getattr(loader, "num_workers", 0):
        return iter(loader)
    with _quiet_fork():
        return iter(loader)


def _is_indexed(loader: Iterable[Any]) -> bool:
    """Whether batches can be skipped by their indices alone: a plain DataLoader over a map."""
    return type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset)


def stacks_samples(loader: Iterable[Any]) -> bool:
    """Whether a loader's batches are new memory that nobody else holds.

    A plain DataLoader that collates in this process makes such; those of workers lie in shared
    memory, of which a process can hold so many only.
    """
    if type(loader) is not DataLoader or loader.num_workers:
        return False
    return loader.batch_sampler is not None and loader.collate_fn is default_collate


def _iterate_rest(loader: Any, skip: int) -> Iterator[Any]:
    """The batches of a DataLoader after the first `skip`, whose samples are never loaded."""
    twin = copy.copy(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    rest = _Rest(getattr(loader, name), skip)
    # DataLoader refuses to have these set after it was made; this is a copy of our own.
    twin.__dict__[name] = rest
    twin.__dict__["_iterator"] = None
    iterator = _iterate(twin)
    rest.draw()
    return iterator


class _Rest:
    """A sampler without its first entries; its length stays that of the whole."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self._sampler = sampler
        self._skip = skip
        self._entries: Iterator[Any] = iter(())
        self._drawn: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        self._entries = islice(iter(self._sampler), self._skip, None)
        return self._all()

    def _all(self) -> Iterator[Any]:
        while self._drawn or self.draw():
            yield self._drawn.popleft()

    def draw(self) -> bool:
        """Take one entry now, if there is one: a sampler draws its order with the first."""
        self._drawn.extend(islice(self._entries, 1))
        return bool(self._drawn)


_forking = False


@contextmanager
def _quiet_fork() -> Iterator[None]:
    global _forking
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
        warnings.filterwarnings("ignore", message=r".*use of fork\(\) may lead to deadlocks")
        _forking = True
        try:
            yield
        finally:
            _forking = False


def _freeze_in_worker() -> None:
    if _forking:
        gc.freeze()


os.register_at_fork(after_in_child=_freeze_in_worker)

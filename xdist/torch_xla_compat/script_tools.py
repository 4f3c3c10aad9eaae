"""Small things training scripts import: fake data, timers, temporary folders, worker pools."""

import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class _Pass(Iterable[Any]):
    """`next`, which takes from one pass over the batches."""

    _running: Iterator[Any] | None = None

    def next(self) -> Any:
        """The next batch of a pass that the first call begins. Raises StopIteration at its end."""
        if self._running is None:
            self._running = iter(self)
        return next(self._running)

    __next__ = next


class SampleGenerator(_Pass):
    """Yields the same `data` object `sample_count` times: a loader that costs nothing."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._sample_count):
            yield self._data

    def __len__(self) -> int:
        return self._sample_count


class FnDataGenerator(_Pass):
    """Yields `count` batches (input, target) of a function.

    Args:
        func: computes the target [batch_size, ...] from the input.
        batch_size: size of the first dim.
        gen_tensor: `gen_tensor(*shape)` makes an input, such as torch.randn.
        dims: the other dims of an input, default [1].
        count: number of batches.
    """

    def __init__(
        self,
        func: Callable[[torch.Tensor], Any],
        batch_size: int,
        gen_tensor: Callable[..., torch.Tensor],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func = func
        self._shape = (batch_size, *(dims or [1]))
        self._gen_tensor = gen_tensor
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        for _ in range(self._count):
            data = self._gen_tensor(*self._shape)
            yield data, self._func(data)


class LazyProperty(Generic[T]):
    """A value computed by `gen_fn` when `.value` is first read."""

    def __init__(self, gen_fn: Callable[[], T]) -> None:
        self._gen_fn = gen_fn
        self._ready = False

    @property
    def value(self) -> T:
        if not self._ready:
            self._value = self._gen_fn()
            self._ready = True
        return self._value


class TmpFolder:
    """A temporary folder, removed with its content when the block ends; `.name` is its path."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *failure: Any) -> None:
        shutil.rmtree(self.name, ignore_errors=True)


class Cleaner:
    """Calls `func` when the block ends, or when the object is garbage."""

    def __init__(self, func: Callable[[], Any]) -> None:
        self._func: Callable[[], Any] | None = func

    def __enter__(self) -> "Cleaner":
        return self

    def __exit__(self, *failure: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Call the function, once."""
        func, self._func = self._func, None
        if func is not None:
            func()


class TimedScope:
    """Prints `msg` and the seconds the block took to stderr.

    Args:
        msg: printed before the time.
        printfn: takes the line; default `eprint`.
    """

    def __init__(self, msg: str = "", printfn: Callable[[str], Any] | None = None) -> None:
        self._msg = msg
        self._print = printfn or eprint
        self._error: Any = None

    def __enter__(self) -> "TimedScope":
        self._started_s = time.perf_counter()
        return self

    def set_error(self, error: Any) -> None:
        """Say beside the time what went wrong in the block."""
        self._error = error

    def __exit__(self, *failure: Any) -> None:
        told = f" [{self._error}]" if self._error is not None else ""
        self._print(f"{self._msg}{time.perf_counter() - self._started_s:.3f}s{told}")


def timed(fn: Callable[[], T], msg: str = "", printfn: Callable[[str], Any] | None = None) -> T:
    """Call `fn`, print `msg` and the seconds it took, and return its result."""
    with TimedScope(msg=msg, printfn=printfn):
        return fn()


def parallel_work(num_workers: int, fn: Callable[..., T], *args: Any) -> list[T]:
    """`fn` over the zipped `args`, on that many threads; the results in order."""
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        return list(pool.map(fn, *args))


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """`n` different TCP ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def as_list(t: Any) -> list[Any]:
    """Lists and tuples as a list; anything else as a list of it."""
    return list(t) if isinstance(t, list | tuple) else [t]


def shape(inputs: Any) -> Any:
    """The shapes inside nested lists and tuples of tensors; their length for plain numbers."""
    if isinstance(inputs, torch.Tensor):
        return list(inputs.size())
    if isinstance(inputs, list | tuple):
        inner = [shape(item) for item in inputs]
        return [len(inputs), *inner[0]] if inner else [0]
    return []


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """The leaves of nested tuples and lists, as one tuple."""
    if not isinstance(inputs, tuple | list):
        return (inputs,)
    return tuple(leaf for item in inputs for leaf in flatten_nested_tuple(item))


def list_copy_append(ilist: list[Any], item: Any) -> list[Any]:
    """A new list with `item` at its end."""
    return [*ilist, item]


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing; stands in for `print`."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """`print` to stderr."""
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """`eprint` where `debug` is true, else a function that prints nothing."""
    return eprint if debug else null_print


def run_once(fn: Callable[..., T]) -> Callable[..., T]:
    """`fn`, called at most once; later calls return the first result."""
    results: list[T] = []

    @wraps(fn)
    def once(*args: Any, **kwargs: Any) -> T:
        if not results:
            results.append(fn(*args, **kwargs))
        return results[0]

    return once

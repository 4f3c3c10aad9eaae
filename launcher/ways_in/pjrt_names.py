"""Processes by the private names of torch_xla's runtime, which test suites use."""

from collections.abc import Callable
from typing import Any

from torch_xdist import settings, world
from torch_xdist.launcher.ways_in.spawn import spawn as spawn_ranks


def run_multiprocess(
    fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any
) -> dict[int, Any]:
    """`fn(*args, **kwargs)` in one process per device; its results by rank."""
    results = spawn_ranks(_Call(fn, args, kwargs), start_method=start_method)
    return dict(enumerate(results))  # type: ignore[arg-type]


class _Call:
    """A call without the rank that `spawn` passes first."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._call = (fn, args, kwargs)

    def __call__(self, index: int) -> Any:
        fn, args, kwargs = self._call
        return fn(*args, **kwargs)


def spawn(
    fn: Callable[..., Any],
    nprocs: int | None = None,
    start_method: str = "spawn",
    args: tuple[Any, ...] = (),
) -> Any:
    """`fn(rank, *args)` in one process per device."""
    return spawn_ranks(fn, args=args, nprocs=nprocs, start_method=start_method)


def run_singleprocess(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[int, Any]:
    """`fn(*args, **kwargs)` here, as rank 0 of 1."""
    return {0: fn(*args, **kwargs)}


def initialize_multiprocess(local_rank: int, local_world_size: int) -> None:
    """Say which of this host's processes this is, before the first use of a device."""
    settings.set_local_rank(local_rank, local_world_size)
    world.forget()


def using_pjrt() -> bool:
    """True: there is no other runtime any more."""
    return True

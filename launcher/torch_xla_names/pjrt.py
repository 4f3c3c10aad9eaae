"""Ranks by the private names of torch_xla's runtime, which test suites use."""

from collections.abc import Callable
from typing import Any

from torch_xdist import settings, world
from torch_xdist.launcher.facts import devices
from torch_xdist.launcher.facts.settings import environment
from torch_xdist.launcher.ways_in.spawn import spawn as spawn_ranks


def run_multiprocess(
    fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any
) -> dict[int, Any]:
    """`fn(*args, **kwargs)` on every device; the results of this host's ranks, by rank.

    The devices of a CPU (CPU_NUM_DEVICES) are those of one process, in which each has a thread;
    elsewhere each has a process. The exception of a rank comes out.
    """
    call = _Call(fn, args, kwargs)
    found, environ = devices.probe(), environment()
    choice = devices.choose(environ, found)
    if choice.kind == "CPU" and devices.local_ranks(None, choice, environ, found) > 1:
        results = spawn_ranks(_OnThreads(call), nprocs=1, start_method=start_method)
        return results[0]  # type: ignore[index,no-any-return]
    results = spawn_ranks(_Keyed(call), start_method=start_method)
    return dict(results)  # type: ignore[arg-type]


class _OnThreads:
    """A call in a thread for each device of the process that `spawn` starts; results by rank."""

    def __init__(self, call: "_Call") -> None:
        self._call = call

    def __call__(self, index: int) -> dict[int, Any]:
        if world.current().task != "function":
            # A rank of another launcher has the one device that it was given.
            return {index: self._call(index)}
        # Late, because the launcher runs without torch.
        from torch_xdist.core.devices import device
        from torch_xdist.ranks import replicas

        device.drive_all()
        return replicas.spawn_threads(self._call)


class _Keyed:
    """A call that tells its rank, too: those of this host may begin anywhere."""

    def __init__(self, call: "_Call") -> None:
        self._call = call

    def __call__(self, index: int) -> tuple[int, Any]:
        return index, self._call(index)


class _Call:
    """A call without the rank that is passed first."""

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

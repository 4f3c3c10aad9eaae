"""Compiled programs are kept between runs, in the user's cache folder unless told otherwise.

JAX has a cache on disk of its own, whose keys are used here: they say all of a program, of XLA's
flags and of the platform. They are known when a program is traced and lowered, so a program has a
key of ours as well (`program_key`), under which stand JAX's key and the rest of what JAX compiled.
What JAX keeps in a folder is read by whoever looks, half written where a process dies, and
unbounded or behind one lock for all, so the folder is ours (`disk_cache`).
"""

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from torch_xdist import metrics, settings
from torch_xdist.core.disk_cache import folder
from torch_xdist.core.disk_cache.store import Store, tell_once
from torch_xdist.core.kept import jax_cache
from torch_xdist.progress import PROGRESS

_EVENTS = "/jax/compilation_cache/"
_MB = 10**6
_store: Store | None = None


def use(*, by_host: bool = True) -> None:
    """Have JAX keep what it compiles, and find what earlier runs kept. Before JAX's start.

    Args:
        by_host: programs are of this host's processor. Those of a TPU are the same on any host.
    """
    global _store
    now = settings.current()
    path, is_named = now.cache_path, now.cache_path is not None
    of_jax: Any = jax.config
    if path == "" or (not is_named and of_jax.jax_compilation_cache_dir is not None):
        if path is None:
            _count()
        return
    if path is None:
        path = settings.user_cache_folder(folder.NAME)
    if "://" in path:
        _use_of_jax(path, now.cache_read_only)
        return
    try:
        opened = folder.opened(os.path.abspath(path), is_named=is_named)
    except OSError as error:
        metrics.count("PersistentCacheFailure")
        reason = f"{path} cannot be used ({error.strerror})" if error.strerror else str(error)
        tell_once(f"{reason}; programs are not kept between runs")
        return
    limit_bytes = now.cache_disk_mb * _MB
    _store = Store(opened, path, limit_bytes, stamp(by_host), is_read_only=now.cache_read_only)
    if jax_cache.keep_compiled(_store):
        _of_any_size()
        _count()
    else:
        _store = None
        os.close(opened)
        if is_named:
            _use_of_jax(path, now.cache_read_only)


def is_on() -> bool:
    """Whether programs are kept in a folder of ours, so that keys of ours find them."""
    return _store is not None and jax_cache.can_pack()


def find(name: str, *, of_all: bool = False) -> bytes | None:
    """What `keep` kept under a name, in this run or an earlier one."""
    return None if _store is None else _store.find(name, of_all=of_all)


def keep(name: str, value: bytes, *, of_all: bool = False) -> None:
    """Keep something else than a program beside them; `of_all`: for every release and processor."""
    if _store is not None:
        _store.keep(name, value, of_all=of_all)


class Kept:
    """A program between runs.

    Attributes:
        found: what an earlier run compiled; None where there is nothing.
        made: what this run compiled; None as long as it has not.
    """

    __slots__ = ("found", "made")

    def __init__(self, found: jax.stages.Compiled | None = None) -> None:
        self.found = found
        self.made: jax.stages.Compiled | None = None


@contextlib.contextmanager
def kept(key: str, device: jax.Device) -> Iterator[Kept]:
    """Around the making of a program: finds it, or keeps what is made of it.

    Other processes of this host that want it as well wait meanwhile.

    Args:
        key: of `program_key`; "": only JAX's own can find it.
    """
    # Only the first of JAX's processes writes, so to wait for another one would be in vain.
    if _store is None or jax.process_count() > 1:
        yield Kept()
        return
    with _store.turn() as asked:
        program = Kept(_found(_store, key, device) if key else None)
        yield program
        if key and program.made is not None and [*asked.values()] == [True]:
            rest = jax_cache.packed(program.made)
            if rest is not None:
                _store.keep(key, b"\n".join([*map(str.encode, asked), rest]))


def _found(store: Store, key: str, device: jax.Device) -> jax.stages.Compiled | None:
    """The program under a key of ours, where the folder has both of its parts."""
    entry = store.find_program(key)
    if entry is None:
        return None
    of_jax, _, rest = entry.partition(b"\n")
    executable = store.get(of_jax.decode())
    if executable is None:
        return None
    try:
        found = jax_cache.unpacked(rest, executable, device)
    except Exception:
        # Whatever it is, the program can be compiled.
        metrics.count("PersistentCacheDamaged")
        return None
    metrics.count("PersistentCacheHit")
    return found


@functools.cache
def stamp(with_processor: bool = True) -> str:
    """What a compiled program depends on beside JAX's key: releases, and what the CPU can do."""
    names = "torch-xdist", "torch", "jax", "jaxlib", "libtpu", "numpy"
    parts = [f"{name} {_version(name)}" for name in names]
    of_host = [platform.machine(), _processor()] if with_processor else []
    return "\n".join([*parts, *of_host])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _processor() -> str:
    """The processor and its instructions, where the system tells."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return platform.processor()
    told = ("model name", "cpu family", "model\t", "stepping", "flags", "Features", "CPU ")
    lines = sorted(line for line in first.splitlines() if line.startswith(told))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _use_of_jax(path: str, is_read_only: bool) -> None:
    """JAX's own cache: what is not a path, and releases of JAX that take no other."""
    # JAX has no switch for read-only: a program that must take ages to be kept is never written.
    jax.config.update("jax_compilation_cache_dir", path)
    _of_any_size(least_s=1e9 if is_read_only else 0.0)
    _count()


def _of_any_size(least_s: float = 0.0) -> None:
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_s)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@functools.cache
def _count() -> None:
    jax.monitoring.register_event_listener(_count_cached)


def _count_cached(event: str, **named: Any) -> None:
    """Count which of our programs were in the folder; JAX compiles others of its own besides."""
    if PROGRESS.compiling and event.startswith(_EVENTS):
        if event.endswith("/compile_requests_use_cache"):
            metrics.count("PersistentCacheMiss")
        elif event.endswith("/cache_hits"):
            # The request for it was counted as a miss.
            metrics.count("PersistentCacheMiss", -1)
            metrics.count("PersistentCacheHit")

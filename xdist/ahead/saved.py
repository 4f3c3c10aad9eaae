"""Programs that were compiled for a TPU elsewhere, kept where JAX on that TPU looks for its own.

The key is JAX's: of the module, of the options, of the topology and of libtpu's build. So an entry
is found by a process that would compile the same, and by no other. That a TPU's JAX makes the same
key for a described topology as for the real one is not known: no TPU has been at hand.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

try:
    from jax._src import compilation_cache, compiler
except ImportError:
    compilation_cache = compiler = None  # type: ignore[assignment]

from torch_xdist import settings
from torch_xdist.core.disk_cache import folder
from torch_xdist.core.disk_cache.store import Store
from torch_xdist.core.kept import on_disk
from torch_xdist.errors import ReleaseError

_NEEDED = ("compile_or_get_cached",)
_OF_CACHE = ("get_cache_key", "combine_executable_and_time", "compress_executable")
_lock = threading.Lock()


class Given(NamedTuple):
    """What JAX would give XLA for a program: its options, serialized, and the key of its cache."""

    options: bytes
    key: str


class _Asked(BaseException):
    """Ends a compilation where XLA would begin; nothing else catches it."""


def given(lowered: Any, options: dict[str, Any]) -> Given:
    """What compiling a lowered program comes to, without compiling it.

    Raises:
        ReleaseError: this release of JAX compiles otherwise.
    """
    there = all(hasattr(compiler, name) for name in _NEEDED)
    if not there or not all(hasattr(compilation_cache, name) for name in _OF_CACHE):
        raise ReleaseError(
            f"xla-run compile --save: jax {jax.__version__} compiles otherwise than jax 0.10.2, of"
            " which keys are known; use one of the releases in docs/versions.md, or no --save"
        )
    with _caught() as found, contextlib.suppress(_Asked):
        lowered.compile(compiler_options=options or None)
    backend, module, devices, told = found
    key = compilation_cache.get_cache_key(module, devices, told, backend)
    return Given(told.SerializeAsString(), key)


@contextlib.contextmanager
def _caught() -> Iterator[list[Any]]:
    """Inside it the first compilation of JAX ends with `_Asked`, and leaves its arguments here."""
    found: list[Any] = []

    def asked(backend: Any, module: Any, devices: Any, options: Any, *_: Any, **__: Any) -> None:
        found.extend((backend, module, devices, options))
        raise _Asked

    of_jax: Any = compiler
    with _lock:
        before = of_jax.compile_or_get_cached
        of_jax.compile_or_get_cached = asked
        try:
            yield found
        finally:
            of_jax.compile_or_get_cached = before


class Folder:
    """A folder that is copied to the hosts of a TPU, and named there in XLA_PERSISTENT_CACHE_PATH.

    Raises:
        OSError: it cannot be made, or others may write into it.
    """

    def __init__(self, path: str) -> None:
        path = os.path.abspath(path)
        limit_bytes = settings.current().cache_disk_mb * 10**6
        stamp = on_disk.stamp(with_processor=False)
        self._store = Store(folder.opened(path, is_named=True), path, limit_bytes, stamp)

    def keep(self, key: str, executable: bytes, seconds: float) -> None:
        """Write a serialized executable as JAX's cache has them."""
        entry = compilation_cache.combine_executable_and_time(executable, int(seconds))
        self._store.put(key, compilation_cache.compress_executable(entry))

    def get(self, key: str) -> bytes | None:
        """What JAX is given for a key."""
        return self._store.get(key)

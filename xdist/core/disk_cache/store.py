"""Compiled programs by JAX's keys, in a folder: what JAX asks instead of its own cache.

Beside them is what is kept under keys of our own (`find`, `keep`). Nothing that goes wrong here is
an error: what cannot be read is compiled, what cannot be written is not kept, and both are counted
and told once.
"""

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Iterator

from torch_xdist import metrics, world
from torch_xdist.core.disk_cache.entries import Entries
from torch_xdist.core.disk_cache.turns import Turns

# Of the first process that compiles a program, before the others compile it as well.
_LIMIT_S = 600.0
# What no key of JAX's begins with.
_OURS = "torch-xdist "


class Store:
    """The programs of a folder, for processes of one kind.

    Args:
        folder: its descriptor.
        path: its name, for messages.
        limit_bytes: how much of the disk they may take together.
        stamp: all that makes a program another one beside JAX's key: versions, the processor.
    """

    def __init__(
        self, folder: int, path: str, limit_bytes: int, stamp: str, *, is_read_only: bool = False
    ) -> None:
        # JAX's name for it, which it shows in logs.
        self._path = path
        self._entries = Entries(folder, limit_bytes)
        self._stamp = stamp.encode()
        self._is_read_only = is_read_only
        self._turns = None if is_read_only else _turns(folder)
        self._mine = threading.local()
        self._given: set[str] = set()

    def get(self, key: str) -> bytes | None:
        """The program of a key; None where it has to be compiled, by this process."""
        found = self._got(self._name(key))
        self._note(key, is_there=found is not None)
        return found

    def put(self, key: str, value: bytes) -> None:
        """Keep the program of a key."""
        self._note(key, is_there=self._kept(self._name(key), value))

    def find_program(self, key: str) -> bytes | None:
        """What is kept of a program under a key of our own; None where it has to be compiled."""
        return self._got(self._name(f"{_OURS}{key}"))

    def find(self, key: str, *, of_all: bool = False) -> bytes | None:
        """What is kept under a key of our own.

        Args:
            of_all: it is the same whatever the stamp says.
        """
        return self._read(self._name(f"{_OURS}{key}", of_all=of_all))

    def keep(self, key: str, value: bytes, *, of_all: bool = False) -> None:
        """Keep this under a key of our own."""
        name = self._name(f"{_OURS}{key}", of_all=of_all)
        # Another value of the same key is no sign of damage.
        self._given.discard(name)
        self._kept(name, value)

    def _got(self, name: str) -> bytes | None:
        found = self._read(name)
        held = getattr(self._mine, "turns", None)
        if found is None and held is not None and self._turns is not None:
            if self._turns.begin(name):
                held.append(name)
            else:
                metrics.count("PersistentCacheWait")
                self._turns.wait(name, _LIMIT_S)
            found = self._read(name)
        if found is not None:
            self._given.add(name)
        return found

    def _kept(self, name: str, value: bytes) -> bool:
        if name in self._given:
            # Its bytes were as they had been written, but XLA could not load them.
            self._given.discard(name)
            metrics.count("PersistentCacheDamaged")
        if self._is_read_only:
            return False
        try:
            return self._entries.write(name, value)
        except OSError as error:
            metrics.count("PersistentCacheFailure")
            tell_once(f"{self._path} cannot be written ({error.strerror}); programs are not kept")
        return False

    def _note(self, key: str, *, is_there: bool) -> None:
        asked = getattr(self._mine, "asked", None)
        if asked is not None:
            asked[key] = is_there

    @contextlib.contextmanager
    def turn(self) -> Iterator[dict[str, bool]]:
        """Around a compilation: others that want the same program wait for it.

        Yields the keys that JAX asks for meanwhile, with whether the folder has them now.
        """
        held: list[str] = []
        asked: dict[str, bool] = {}
        self._mine.turns, self._mine.asked = held, asked
        try:
            yield asked
        finally:
            self._mine.turns = self._mine.asked = None
            for name in held:
                self._turns.end(name)  # type: ignore[union-attr]

    def _read(self, name: str) -> bytes | None:
        try:
            return self._entries.read(name)
        except OSError as error:
            metrics.count("PersistentCacheFailure")
            tell_once(f"{self._path} cannot be read ({error.strerror}); programs are compiled")
            return None

    def _name(self, key: str, *, of_all: bool = False) -> str:
        stamp = b"" if of_all else self._stamp
        return hashlib.sha256(stamp + b"\0" + key.encode()).hexdigest()


def _turns(folder: int) -> Turns | None:
    try:
        return Turns(folder)
    except OSError:  # told where a program cannot be written
        return None


_told: set[str] = set()


def tell_once(text: str) -> None:
    """A line on stderr, from the first rank of this host."""
    if text in _told or world.current().local_rank:
        return
    _told.add(text)
    sys.stderr.write(f"torch_xdist: the cache of compiled programs: {text}{os.linesep}")

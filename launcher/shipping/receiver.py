"""A host's end: builds the copy of a job's folder from what it has and what it is sent.

All of it happens on a thread of its own, because the agent touches no disk. What it tells the head:
`wanted` (the numbers of the files it has not), `taken` (bytes that are written), then `shipped` or
`unshippable`; and at the end `unshipped`, with what ranks have left in the copy.
"""

import contextlib
import errno
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch_xdist.launcher.facts import registry, settings
from torch_xdist.launcher.facts.errors import LauncherError, PreflightError, ProtocolError
from torch_xdist.launcher.shipping.cache import KEPT_BYTES, Cache, Incoming
from torch_xdist.launcher.shipping.folder import Copy, sweep
from torch_xdist.launcher.shipping.manifest import Entry, Manifest, size_text
from torch_xdist.system.frames import Message

OPS = ("ship", "contents", "unship")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}")
_CLOSE_S = 3.0
_ADVICE = "make room there, or name another place by --env XLA_RUN_STATE_DIR=FOLDER"


def place(environ: Mapping[str, str]) -> Path:
    """Where this host keeps what it is sent: beside the place of its own for logs."""
    return settings.log_root({**environ, "XLA_RUN_LOG_DIR": ""})[0].parent / "code"


class _Ended(Exception):
    """The job is over before all has come."""


class Receiver:
    """The copy of one job.

    Args:
        root: the place of this host for it.
        say: tells the head; called on the thread.
    """

    def __init__(self, root: Path, say: Callable[[Message], None]) -> None:
        self._root, self._say = root, say
        self._queue: queue.SimpleQueue[tuple[Message, bytes]] = queue.SimpleQueue()
        self._is_ending = threading.Event()
        self._copy: Copy | None = None
        self._thread = threading.Thread(target=self._run, name="xla-run-ship", daemon=True)
        self._thread.start()

    def take(self, message: Message, blob: bytes = b"") -> None:
        """An order of the head; never waits."""
        if message["op"] == "unship":
            self._is_ending.set()
        self._queue.put((message, blob))

    def close(self, limit_s: float = _CLOSE_S) -> None:
        """The agent ends: what nobody has asked to keep goes, if the disk lets it in time."""
        self.take({"op": "unship", "keep": False})
        self._thread.join(limit_s)

    # ---- on the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            order, listed = self._next()
            self._build(order, listed)
        except _Ended:
            pass
        except LauncherError as error:
            self._say({"op": "unshippable", "why": str(error)})
        except OSError as error:
            why = f"{error.strerror or error} ({error.filename or self._root}); {_ADVICE}"
            self._say({"op": "unshippable", "why": f"shipped code: {why}"})
        except Exception as error:
            # The head waits for a word, whatever it has sent.
            self._say({"op": "unshippable", "why": f"shipped code: {error!r}"})
        order, _ = self._queue.get()
        while order["op"] != "unship":
            order, _ = self._queue.get()
        self._leave(keep=bool(order["keep"]))

    def _next(self) -> tuple[Message, bytes]:
        order, blob = self._queue.get()
        if order["op"] == "unship":
            # For `_run`, which ends by it.
            self._queue.put((order, blob))
            raise _Ended
        return order, blob

    def _leave(self, *, keep: bool) -> None:
        copy, self._copy = self._copy, None
        kept, where = 0, ""
        if copy is not None:
            where = str(copy.path)
            with contextlib.suppress(OSError):
                kept = copy.close(keep=keep and copy.is_whole)
        self._say({"op": "unshipped", "kept": kept, "folder": where})

    def _build(self, order: Message, listed: bytes) -> None:
        began_s = time.monotonic()
        manifest = Manifest.from_bytes(listed)
        if not _NAME.fullmatch(order["name"]):
            raise ProtocolError(f"shipped code: {order['name']!r} can be no name of a job")
        root = registry.private_dir(registry.private_dir(self._root.parent) / self._root.name)
        # Nobody else reads what it holds, whoever made it.
        root.chmod(0o700)
        jobs = root / "jobs"
        jobs.mkdir(mode=0o700, exist_ok=True)
        cache = Cache(root)
        self._copy = copy = Copy.of(jobs, order["name"], listed, manifest)
        sent_bytes = 0
        if not copy.is_whole:
            try:
                sent_bytes = _Building(self, copy, manifest, cache, root).whole()
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise _no_room(root, 0, manifest.total_bytes) from error
                raise
        seconds = round(time.monotonic() - began_s, 3)
        told = {"folder": str(copy.path), "sent_bytes": sent_bytes, "seconds": seconds}
        self._say({"op": "shipped", **told})
        with contextlib.suppress(OSError):
            kept = {entry.content for _, entry in manifest.files()}
            cache.prune(KEPT_BYTES, kept)
            sweep(jobs)


class _Building:
    """One copy on its way to be whole."""

    def __init__(
        self, receiver: Receiver, copy: Copy, manifest: Manifest, cache: Cache, root: Path
    ) -> None:
        self._receiver, self._copy, self._cache, self._root = receiver, copy, cache, root
        self._entries = manifest.entries
        self._alike = {numbers[0]: numbers for numbers in manifest.alike()}
        self._total_bytes = manifest.total_bytes

    def whole(self) -> int:
        """Build it; the bytes that had to be sent."""
        self._copy.begin()
        wanted = [first for first, numbers in self._alike.items() if not self._is_here(numbers)]
        wanted.sort()
        sent = sum(self._entries[number].size for number in wanted)
        self._make_room(wanted)
        self._receiver._say({"op": "wanted", "numbers": wanted})
        for number in wanted:
            self._receive(number)
        self._copy.finish()
        return sent

    def _is_here(self, numbers: Sequence[int]) -> bool:
        """Make the files of one content from the cache, if it has that."""
        for number in numbers:
            entry = self._entries[number]
            if self._receiver._is_ending.is_set():
                raise _Ended
            is_known = not entry.size or self._cache.may_have(entry.content, entry.size)
            if not is_known or not self._copy.add(entry, partial(self._fill, entry)):
                return False
        return True

    def _fill(self, entry: Entry, to: int) -> bool:
        return not entry.size or self._cache.copy(entry.content, entry.size, to)

    def _make_room(self, wanted: Sequence[int]) -> None:
        """Whether there is enough for what comes, in the cache and in the copy.

        Raises:
            PreflightError: there is not, even without what the cache has for other jobs.
        """
        coming = sum(self._entries[first].size * (1 + len(self._alike[first])) for first in wanted)
        if coming > _free_bytes(self._root):
            self._cache.prune(0, {entry.content for entry in self._entries})
        if coming > (free := _free_bytes(self._root)):
            raise _no_room(self._root, free, coming)

    def _receive(self, number: int) -> None:
        """One content, which comes in pieces; every piece that is written is told."""
        entry = self._entries[number]
        incoming = self._cache.incoming(entry.content)
        try:
            left = entry.size
            while left > 0:
                order, blob = self._receiver._next()
                if order["number"] != number or not 0 < len(blob) <= left:
                    raise ProtocolError(
                        f"shipped code: {len(blob)} bytes of file {order['number']} came where "
                        f"{left} of file {number} were to come"
                    )
                incoming.add(blob)
                left -= len(blob)
                self._receiver._say({"op": "taken", "bytes": len(blob)})
            incoming.finish()
            for one in self._alike[number]:
                self._copy.add(self._entries[one], lambda fd: _filled(incoming, fd))
        finally:
            incoming.close()


def _filled(incoming: Incoming, fd: int) -> bool:
    incoming.copy_to(fd)
    return True


def _free_bytes(root: Path) -> int:
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize


def _no_room(root: Path, free: int, needed: int) -> PreflightError:
    return PreflightError(
        f"shipped code: {size_text(needed)} are needed in {root}, and {size_text(free)} are free; "
        f"{_ADVICE}"
    )

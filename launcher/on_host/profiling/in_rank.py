"""A rank is profiled because somebody has asked for it, whatever its program does meanwhile.

It is taken on a thread and goes to the agent as a file in memory, so that nothing of it stays,
however the rank ends. A rank that has no device yet is not given one for it: when and on which
thread a backend starts is the program's business.
"""

import contextlib
import importlib
import os
import sys
import threading
from typing import Any

from torch_xdist.system.frames import Link, Message, to_memory_file

MOST_BYTES = 256 << 20
# So long a rank that has finished waits for what is to be written down, and one profile for
# another that was given up.
_FINISH_S = 10.0
_DEVICES = "jax._src.xla_bridge"


class AskedProfiles:
    """The profiles that a rank is asked for; one at a time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._thread: threading.Thread | None = None
        self._ended, self._id = threading.Event(), ""
        self._has_finished = False

    def take(self, message: Message) -> None:
        """Begin one, or say why not; never waits."""
        if self._has_finished:
            self._say(message["id"], why="it has finished, and waits for the other ranks")
            return
        before, is_given_up = self._thread, self._ended.is_set()
        if before is not None and before.is_alive() and not is_given_up:
            self._say(message["id"], why="a profile of it is still being taken")
            return
        self._ended, self._id = threading.Event(), message["id"]
        told = (message, self._ended, before)
        self._thread = threading.Thread(
            target=self._take, args=told, daemon=True, name="asked-profile"
        )
        self._thread.start()

    def give_up(self, message: Message) -> None:
        """Nobody waits for this one any more."""
        if message["id"] == self._id:
            self._ended.set()

    def finish(self) -> None:
        """The rank has finished: what is being taken is told now."""
        self._has_finished = True
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_FINISH_S)

    def _take(
        self, message: Message, ended: threading.Event, before: threading.Thread | None
    ) -> None:
        try:
            if before is not None:
                before.join(_FINISH_S)
            if why := _why_not():
                self._say(message["id"], why=why)
                return
            module: Any = importlib.import_module("torch_xdist.debug.asked_profile")
            if module.runs():
                self._say(message["id"], why="its program, or another tool, profiles it already")
                return
            taken = module.take(
                float(message["seconds"]), ended, python_calls=bool(message["python_calls"])
            )
            self._tell(message["id"], taken)
        except Exception as error:
            self._say(message["id"], why=f"{type(error).__name__}: {error}")

    def _tell(self, identity: str, taken: Any) -> None:
        size = len(taken.data)
        if size > MOST_BYTES:
            self._say(
                identity,
                why=f"its profile has {size >> 20} MiB, and at most {MOST_BYTES >> 20} are "
                "brought; take fewer --seconds, or leave out --python-calls",
            )
            return
        note = "it began a profile of its own, which ended this one" if taken.is_cut else ""
        fd = to_memory_file(taken.data, "xla-run-profile")
        try:
            facts = {"bytes": size, "seconds": taken.seconds, "note": note}
            told = {"op": "profiled", "id": identity, **facts}
            self._link.send(told, descriptors=[fd])
        finally:
            os.close(fd)

    def _say(self, identity: str, why: str) -> None:
        with contextlib.suppress(OSError):
            self._link.send({"op": "profiled", "id": identity, "why": why})


def _why_not() -> str:
    """Why a rank cannot be profiled at all; "" where it can."""
    if "jax" not in sys.modules:
        return "it has not loaded jax"
    bridge = sys.modules.get(_DEVICES)
    if bridge is None or not bridge.backends_are_initialized():
        return "it has no device yet; ask again when its first step has run"
    return ""

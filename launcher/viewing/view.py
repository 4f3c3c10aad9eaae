"""A viewer's own end: what a job shows, event by event, until it ends or nobody wants to look."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import BinaryIO

from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.viewing import events
from torch_xdist.launcher.viewing.events import Facts
from torch_xdist.system.process import credentials

_ANSWER_S = 10.0


class View:
    """A look at a job of this user on this host.

    Args:
        name: of its head's socket, as its record has it.
        last: so many lines of the past come first; None: all that its head keeps.

    Raises:
        HostError: its head does not answer.
    """

    def __init__(self, job_id: str, name: str, last: int | None) -> None:
        self._job_id = job_id
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.connect(f"\0{name}")
            # Names without a file belong to nobody: who has it may be somebody else by now.
            if credentials(self._socket)[1] != os.getuid():
                raise HostError(
                    f"job {job_id}: another user answers in its place; nothing is shown"
                )
            # A head that wants no viewer may have gone already: what it said is there to read.
            with contextlib.suppress(BrokenPipeError):
                self._socket.sendall((json.dumps({"last": last}) + "\n").encode())
        except OSError as error:
            self._socket.close()
            if isinstance(error, HostError):
                raise
            raise HostError(
                f"job {job_id}: its launcher cannot be looked at: {error.strerror or error}; "
                "see `xla-run ps -a`"
            ) from error

    def events(self) -> Iterator[tuple[str, Facts]]:
        """("hello", ...) first; ("end", ...) last, unless the head was killed or `leave` called.

        Raises:
            HostError: its head does not answer, or has viewers enough.
        """
        with self._socket, self._socket.makefile("rb") as lines:
            try:
                first = _line(lines)
            except TimeoutError:
                raise HostError(
                    f"job {self._job_id}: its launcher did not answer in {_ANSWER_S:.0f} s; it may "
                    "be stopped (Ctrl-Z)"
                ) from None
            self._socket.settimeout(None)
            while first.endswith(b"\n"):
                event, facts = events.decoded(first)
                if event == "refused":
                    raise HostError(f"job {self._job_id}: {facts['text']}")
                yield event, facts
                first = _line(lines)

    def leave(self) -> None:
        """Look no more; safe in a signal handler."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _line(lines: BinaryIO) -> bytes:
    try:
        return lines.readline()
    except ConnectionError:  # a head that was killed
        return b""

"""Those who look at a job while it runs: each gets its newest lines, then what its head shows.

They come over a Unix socket without a file, whose name stands in the job's record: nothing of it is
left, however the head ends. The kernel says who is at the other end, and only this user and
root are heard; so no secret is needed. The head's thread only puts events into queues.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.viewing import events
from torch_xdist.launcher.viewing.background import BackgroundWriter, dropped_text
from torch_xdist.launcher.viewing.events import Facts
from torch_xdist.launcher.viewing.history import History
from torch_xdist.system.process import credentials

_MOST = 32
_HELLO_S = 5.0
_CLOSE_S = 2.0
_MOST_HELLO_BYTES = 4096


class Viewers:
    """The way in for viewers of one job.

    Attributes:
        name: of the socket; "": none could be made, and nobody can look.
    """

    def __init__(self, job: Job) -> None:
        labels = job.labels() if job.hosts else None
        self._hello: Facts = {"job": job.job_id, "ranks": job.nprocs, "labels": labels}
        self._history, self._lock = History(), threading.Lock()
        self._here: list[_Viewer] = []
        self._end: Facts = {"exit_code": None, "text": "", "warnings": []}
        self.name = f"xla-run-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(f"\0{self.name}")
            self._socket.listen(_MOST)
        except OSError:  # a kernel without them: the job is none the worse for it
            self.name = ""
            self._socket.close()
            return
        threading.Thread(target=self._accept, name="xla-run-viewers", daemon=True).start()

    def __call__(self, event: str, **facts: Any) -> None:
        """Show an event to all of them; on any thread, and never waits for one."""
        if event == "end":
            # Told by `close`: until then the job is not over.
            self._end = facts
        elif event in events.SHOWN:
            with self._lock:
                self._history.add(event, facts)
                for viewer in self._here:
                    viewer.show(event, facts)

    def fails(self, exit_code: int, text: str) -> None:
        """The job ends in an error of the launcher's own."""
        self._end = {"exit_code": exit_code, "text": text, "warnings": []}

    def close(self) -> None:
        """Tell them how it ended, and let them go."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            here, self._here = self._here, []
            for viewer in here:
                viewer.show("end", self._end)
        for viewer in here:
            viewer.close(_CLOSE_S)

    def _accept(self) -> None:
        while True:
            try:
                came, _ = self._socket.accept()
            except OSError:
                return
            if credentials(came)[1] not in (os.getuid(), 0):
                came.close()
                continue
            threading.Thread(target=self._serve, args=(came,), daemon=True).start()

    def _serve(self, came: socket.socket) -> None:
        with came, contextlib.suppress(OSError, ValueError):
            came.settimeout(_HELLO_S)
            asked = json.loads(_hello(came))
            # It has no more to say; the end of it is the end of the viewer.
            came.settimeout(None)
            with self._lock:
                if len(self._here) >= _MOST:
                    text = f"{_MOST} viewers look at this job; end one of them"
                    came.sendall(events.encoded("refused", {"text": text}))
                    return
                viewer = _Viewer(came)
                viewer.show("hello", self._hello)
                for event, facts in self._history.last(asked["last"]):
                    viewer.show(event, facts)
                self._here.append(viewer)
            while came.recv(1):
                pass
            with self._lock, contextlib.suppress(ValueError):
                self._here.remove(viewer)
            viewer.close(0.0)


class _Viewer:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._writer: BackgroundWriter[Callable[[], bytes]] = BackgroundWriter(
            self._write, lambda lines: lambda: _dropped(lines)
        )

    def show(self, event: str, facts: Facts) -> None:
        # How the job stands is told again soon.
        if event != "beats" or self._writer.is_idle():
            self._writer.offer(lambda: events.encoded(event, facts), *events.size(event, facts))

    def close(self, limit_s: float) -> None:
        self._writer.close(limit_s)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _write(self, line: Callable[[], bytes]) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(line())


def _hello(sock: socket.socket) -> bytes:
    with sock.makefile("rb", buffering=0) as asked:
        line: bytes = asked.readline(_MOST_HELLO_BYTES)
    if not line.endswith(b"\n"):
        raise ValueError("no line")
    return line


def _dropped(lines: int) -> bytes:
    return events.encoded("note", {"text": dropped_text(lines).rstrip("\n")})

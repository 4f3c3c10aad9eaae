"""The end of the log of a rank that failed, brought from its host to where the job was started.

The whole log stays on the host. At the head `LogEnds` asks, when an attempt is over, and files what
comes as ATTEMPT/rank-R.log, where `xla-run logs` finds it; on the host `read` answers. Nobody is
asked for more than `MOST_BYTES` of `MOST_RANKS` ranks, nothing is waited for longer than
`LIMIT_S`, and what is not there in time is left out: the host still has it.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch_xdist.system.frames import Message

OP = "log_end"
MOST_BYTES = 1 << 20
MOST_RANKS = 8
LIMIT_S = 3.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# A file that is here already, because the host is this machine, is the log itself.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# The thread that writes logs may be behind by a moment.
_STILL_S = 0.1

Send = Callable[[Mapping[str, Any], bytes], None]


def read(log_dir: str, rank: int) -> tuple[Message, bytes]:
    """What a host answers: how many bytes the log has before its end, and that end."""
    size, data = 0, b""
    with contextlib.suppress(OSError), open(os.open(_path(log_dir, rank), _READ), "rb") as file:
        size = _still_size(file.fileno())
        file.seek(max(0, size - MOST_BYTES))
        data = file.read(MOST_BYTES)
    return {"op": OP, "rank": rank, "before": max(0, size - MOST_BYTES)}, data


def _still_size(fd: int) -> int:
    """How long a file is, once it has not grown for a moment, or soon after."""
    size = os.fstat(fd).st_size
    for _ in range(5):
        time.sleep(_STILL_S)
        before, size = size, os.fstat(fd).st_size
        if size == before:
            break
    return size


def _path(log_dir: str, rank: int) -> Path:
    return Path(log_dir, f"rank-{rank}.log")


class LogEnds:
    """Those of one attempt, at the head.

    Args:
        folder: of the attempt here; "": nothing is asked for.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._asked: dict[int, str] = {}
        self._threads: list[threading.Thread] = []
        self._paths: dict[int, Path] = {}

    def ask(self, failed: Iterable[tuple[int, str, Send]]) -> None:
        """Ask for the logs of ranks.

        Args:
            failed: for each rank what the place of its log is called, and the way to its agent.
        """
        for rank, place, send in list(failed)[:MOST_RANKS] if self._folder else ():
            if rank not in self._asked:
                self._asked[rank] = place
                send({"op": OP, "rank": rank}, b"")

    def take(self, message: Message, blob: bytes) -> None:
        """An answer: it is filed on a thread, because a disk may hang."""
        rank, before = int(message["rank"]), int(message["before"])
        place = self._asked.pop(rank, None)
        if place is None or not blob:
            return
        note = f"[{before} bytes before this are in {_path(place, rank)}]\n".encode()
        data = (note if before else b"") + blob[-MOST_BYTES:]
        thread = threading.Thread(target=self._file, args=(rank, data), daemon=True)
        self._threads.append(thread)
        thread.start()

    def have_come(self) -> bool:
        """Whether everybody has answered."""
        return not self._asked

    def told(self, rank: int, place: str) -> str:
        """Where the log of a rank is, and its end, if that is here by now."""
        end_s = time.monotonic() + LIMIT_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        return f"{place}\nits end is here: {self._paths[rank]}" if rank in self._paths else place

    def _file(self, rank: int, data: bytes) -> None:
        path = _path(self._folder, rank)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(os.open(path, _NEW, 0o600), "wb") as file:
                file.write(data)
            self._paths[rank] = path

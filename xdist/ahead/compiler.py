"""The compiler in a process of its own: asked, waited for within a limit, replaced where it ended.

TPUs' compiler checks itself by aborting its process, on inputs that a user may well write.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from torch_xdist.ahead.topology import Topology
from torch_xdist.ahead.verdict import ABORTED, LATE, Verdict
from torch_xdist.system.frames import MOST_BLOB_BYTES, Decoder, Message, encode

_WORDS_BYTES = 64 << 10


class Compiler:
    """Compiles modules for topologies, one after the other. Threads take turns.

    Args:
        limit_s: what one module may take; the first one of a process also starts it.
    """

    def __init__(self, limit_s: float = 300.0) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: Any = None

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process that compiles; None before the first program and after a failure."""
        return self._child.pid if self._child is not None else None

    def compile(
        self,
        module: bytes,
        topology: Topology,
        places: list[int],
        options: dict[str, Any],
        all_options: bytes = b"",
    ) -> Verdict:
        """What the compiler makes of a module: see `module_compiler.compile_module`.

        With all of JAX's options the executable is part of the verdict.
        """
        message: Message = {
            "name": topology.name,
            "slices": topology.slices,
            "places": places,
            "options": options,
            "all_options": all_options.hex(),
        }
        with self._lock:
            return self._asked(encode(message, module))

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _asked(self, frame: bytes) -> Verdict:
        child = self._child or self._start()
        deadline = time.monotonic() + self._limit_s
        decoder = Decoder(most_blobs=MOST_BLOB_BYTES)
        assert child.stdin is not None and child.stdout is not None
        try:
            # It reads whenever it does not compile, and it compiles only after the whole frame.
            child.stdin.write(frame)
            child.stdin.flush()
        except BrokenPipeError:
            return self._aborted()
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._end()
                    return Verdict(LATE, f"the compiler was not done after {self._limit_s:g} s")
                data = os.read(child.stdout.fileno(), 1 << 20)
                if not data:
                    return self._aborted()
                for answer in decoder.feed(data):
                    return Verdict(**answer.message, executable=answer.blob)

    def _start(self) -> "subprocess.Popen[bytes]":
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by _end
        self._child = subprocess.Popen(
            [sys.executable, "-m", "torch_xdist.ahead.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        return self._child

    def _aborted(self) -> Verdict:
        assert self._child is not None
        code = self._child.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        words = f"the compiler's process ended ({how}): {_last_words(self._errors)}"
        self._end()
        return Verdict(ABORTED, words)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


def _last_words(errors: Any) -> str:
    """Why a process aborted, in its own words: the line of the failed check, else the last one."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _WORDS_BYTES))
    lines = errors.read().decode(errors="replace").splitlines()
    fatal = [line for line in lines if line.startswith("F") and "Check failed" in line]
    said = [line for line in lines if line.strip()]
    return (fatal or said[-1:] or ["it said nothing"])[0].strip()

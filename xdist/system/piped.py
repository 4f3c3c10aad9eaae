"""A program with a pipe for each of its three streams, such as an ssh that carries messages."""

import os
import select
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch_xdist.system.process import Child


class Piped(NamedTuple):
    """The program, and our ends of its pipes, which are the caller's to close."""

    process: Child
    stdin: int
    stdout: int
    stderr: int


def start(words: Sequence[str], environ: Mapping[str, str] | None = None) -> Piped:
    """Start a program in a session of its own, which a Ctrl-C on our terminal does not reach.

    Args:
        environ: its variables; None: those of this process.

    Raises:
        OSError: there is no such program, or too many files are open; nothing is left open then.
    """
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe2(os.O_CLOEXEC)
        stdin, our_stdin, our_stdout, stdout, our_stderr, stderr = fds
        theirs = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        process = Child.start(words, **theirs, env=environ, start_new_session=True)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    for fd in theirs.values():
        os.close(fd)
    return Piped(process, our_stdin, our_stdout, our_stderr)


def last_words(stderr: int, most_bytes: int, limit_s: float) -> bytes:
    """What a program that has ended said last; closes the pipe.

    Something that it has started may hold the pipe open: that is not waited for beyond the limit.
    """
    end_s, found = time.monotonic() + limit_s, b""
    pipe = select.poll()
    pipe.register(stderr, select.POLLIN)
    try:
        while len(found) < most_bytes:
            left_s = max(0.0, end_s - time.monotonic())
            if not pipe.poll(1000 * left_s) or not (data := os.read(stderr, most_bytes)):
                break
            found += data
    finally:
        os.close(stderr)
    return found[:most_bytes]

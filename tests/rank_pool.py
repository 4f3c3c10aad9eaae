"""A pool of rank processes for tests: each call runs one function on ranks 0 .. n-1 of a new world.

Processes are forked from a server that has imported jax, so a pool of eight starts in about a
second. Functions travel by value; results and exceptions come back.
"""

import multiprocessing
import os
import sys
import traceback
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

_PRELOAD = ["torch_xdist.collectives.inside", "cloudpickle"]


class RankFailed(AssertionError):
    """A function failed on a rank; the text holds its traceback."""


class RankPool:
    """Processes that run functions as ranks. Use it as a context manager."""

    def __init__(self, size: int, preload: list[str] | None = None) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(preload or _PRELOAD)
        self._workers: list[tuple[Any, Connection]] = [self._started() for _ in range(size)]

    def _started(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def run(
        self,
        size: int,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float = 60.0,
        join: bool = True,
    ) -> list[Any]:
        """`function(rank, size, *arguments)` on each rank; what each returned.

        With `join` the ranks are joined by the host transport first. Raises RankFailed.
        """
        results = self.outcomes(size, function, *arguments, timeout_s=timeout_s, join=join)
        for rank, (good, value) in enumerate(results):
            if not good:
                raise RankFailed(f"rank {rank} of {size}:\n{value}")
        return [value for _, value in results]

    def outcomes(
        self,
        size: int,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float = 60.0,
        join: bool = True,
    ) -> list[tuple[bool, Any]]:
        """As `run`, but per rank (it returned, what) or (False, traceback).

        A rank that died gives (False, "died with exit code -9") and is replaced.
        """
        module = sys.modules[function.__module__]
        cloudpickle.register_pickle_by_value(module)
        try:
            payload = cloudpickle.dumps((function, arguments))
        finally:
            cloudpickle.unregister_pickle_by_value(module)
        job = uuid.uuid4().hex
        for rank in range(size):
            self._workers[rank][1].send_bytes(
                cloudpickle.dumps((rank, size, job if join else None, payload))
            )
        return [self._outcome(rank, timeout_s) for rank in range(size)]

    def _outcome(self, rank: int, timeout_s: float) -> tuple[bool, Any]:
        process, pipe = self._workers[rank]
        try:
            if pipe.poll(timeout_s):
                return cloudpickle.loads(pipe.recv_bytes())
            process.kill()
            problem = f"no answer within {timeout_s} s"
        except (EOFError, ConnectionResetError):
            process.join(5)
            problem = f"died with exit code {process.exitcode}"
        self._workers[rank] = self._started()
        return False, problem

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *failure: object) -> None:
        for _, pipe in self._workers:
            pipe.close()
        for process, _ in self._workers:
            process.join(5)
            process.kill()


def _serve(pipe: Connection) -> None:
    while True:
        try:
            rank, size, job, payload = cloudpickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            os._exit(0)
        pipe.send_bytes(cloudpickle.dumps(_outcome(rank, size, job, payload)))


def _outcome(rank: int, size: int, job: str | None, payload: bytes) -> tuple[bool, Any]:
    try:
        function, arguments = cloudpickle.loads(payload)
        if job is not None:
            from torch_xdist.collectives.shared_memory import transport as shared_memory

            shared_memory.join(rank, size, job)
        return True, function(rank, size, *arguments)
    except BaseException:
        return False, traceback.format_exc()

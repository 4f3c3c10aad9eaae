"""Numbers that a program announces to the host while it still runs.

XLA tells when all results of a program are there, not when one is. A loop that reads its loss in
each step would wait for the end of the step, and then record the next one beside an idle device. So
a step's program for CPUs calls the host with such numbers before its backward pass begins, and who
reads one of them waits for that call alone.

The call needs Python's lock, for which a program must not wait without a reason: it is made where
somebody waited for a number shortly before, and left out in loops that read nothing.
"""

import atexit
import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core as jax_core
from jax.interpreters import mlir

from torch_xdist import metrics
from torch_xdist.collectives import ffi

_CALL = "xdist_announce"
# So many runs announce after somebody waited for a number; loops may have several programs.
_UNREAD = 4
# The newest runs whose results are known; older ones are over.
_MOST_RUNS = 32
# How often a reader looks whether the program has failed, and will never call.
_LOOK_S = 0.05

_tickets = itertools.count(1)
_lock = threading.Lock()
_running: dict[int, "_Run"] = {}  # by ticket
_of_results: dict[int, "_Run"] = {}  # by the id of a result


@dataclass(slots=True, eq=False)
class Early:
    """What a program announces.

    Attributes:
        places, slots: of the numbers among its results, and among what its rows compute.
        seed: the slot of the single number that the backward pass begins with.
    """

    places: tuple[int, ...]
    slots: tuple[int, ...]
    seed: int

    def __post_init__(self) -> None:
        _listen()

    def announce(self, env: dict[int, jax.Array], ticket: jax.Array) -> None:
        """Put the call between the numbers and the backward pass, while a program is traced.

        Args:
            env: the values of slots.
            ticket: float64 []; 0 for no call.
        """
        numbers = [env[slot] for slot in self.slots]

        def call(seed: jax.Array) -> jax.Array:
            return _announce.bind(seed, ticket, *numbers)  # type: ignore[no-any-return]

        # XLA does not know that the seed stays what it is, so what needs it comes later.
        env[self.seed] = jax.lax.cond(ticket > 0, call, lambda seed: seed, env[self.seed])


class _Run:
    """A run of such a program.

    Attributes:
        results: of these numbers, weakly: whether an array is given away depends on who holds it.
        last: a result of no tensor's, which whoever waits for the run can hold.
        numbers: what has been announced.
        waits: held until then.
    """

    __slots__ = ("last", "numbers", "results", "waits")

    def __init__(self) -> None:
        self.results: list[weakref.ref[jax.Array]] = []
        self.last: Any = None
        self.numbers: list[np.ndarray] = []
        self.waits = threading.Lock()
        self.waits.acquire()


class _Readers:
    """How many runs were launched since somebody waited for a number."""

    unread = _UNREAD


_announce = jax_core.Primitive(_CALL)


@_announce.def_abstract_eval
def _result(seed: Any, ticket: Any, *numbers: Any) -> Any:
    return jax.core.ShapedArray(seed.shape, seed.dtype)


def _lower(context: Any, *operands: Any) -> Any:
    rule = jax.ffi.ffi_lowering(_CALL, has_side_effect=True, operand_output_aliases={0: 0})
    return rule(context, *operands, spec="")


mlir.register_lowering(_announce, _lower, platform="cpu")


def _arrived(inputs: list[np.ndarray], outputs: Any, spec: bytes, ordinal: int) -> None:
    _, ticket, *numbers = inputs
    run = _running.pop(int(ticket), None)
    if run is not None:
        run.numbers += [number.copy() for number in numbers]
        run.waits.release()


@functools.cache
def _listen() -> None:
    """Make the call known to XLA; before a program with it is compiled or loaded."""
    ffi.register(_CALL, _arrived)
    atexit.register(_wait_for_calls)


def _wait_for_calls() -> None:
    """A call into an interpreter that has ended would end the process by a segmentation fault."""
    for run in [*_running.values()]:
        if run.last is not None:
            with contextlib.suppress(RuntimeError):  # A program that failed has been told of.
                run.last.block_until_ready()


def stamped(arguments: Sequence[Any]) -> tuple[Sequence[Any], _Run | None]:
    """A program's arguments with a ticket behind the floats, and the run, where it announces."""
    donated, kept, floats, ints = arguments
    run, ticket = None, 0
    _Readers.unread += 1
    if _Readers.unread <= _UNREAD:
        run, ticket = _Run(), next(_tickets)
        with _lock:
            _running[ticket] = run
            _forget_oldest(_running)
    numbers = np.empty(floats.size + 1)
    numbers[:-1], numbers[-1] = floats, ticket
    return (donated, kept, numbers, ints), run


def launched(early: Early, run: _Run | None, results: list[jax.Array]) -> None:
    """A run has been launched, and these will be its results; the last one leaves them."""
    last = results.pop()
    if run is None:
        return
    run.last = last
    with _lock:
        for place in early.places:
            array = results[place]
            run.results.append(weakref.ref(array))
            _of_results[id(array)] = run
        _forget_oldest(_of_results)


def _forget_oldest(runs: dict[int, _Run]) -> None:
    # A thread of XLA's may take one out meanwhile.
    for key in [*runs][:-_MOST_RUNS]:
        runs.pop(key, None)


def read(array: Any) -> np.ndarray | None:
    """The number that a running program has computed, [], once it is announced.

    None for an array that no running program announces: one that is there, or has to be waited for.
    """
    if array.shape or array.is_deleted() or array.is_ready():
        return None
    _Readers.unread = 0
    run = _of_results.get(id(array))
    if run is None:
        return None
    place = next((i for i, result in enumerate(run.results) if result() is array), None)
    if place is None:
        return None
    while not run.numbers:
        if run.waits.acquire(timeout=_LOOK_S):
            run.waits.release()
        elif array.is_ready():
            return None
    metrics.count("EarlyRead")
    return run.numbers[place]

"""Programs that come once: CPU torch computes their rows, and nothing is compiled.

A notebook, a test suite, a loop whose shapes always differ makes one program after the other that
never comes again, and compiling one takes longer than computing it a hundred times. Where programs
came once, a new one is computed on the host; one that comes again and again is compiled after all.
Only on the CPU, whose memory is the host's, and only where no other rank has to get the same bits.
"""

import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from torch_xdist import metrics, platforms, settings, world
from torch_xdist.core.programs import program as programs
from torch_xdist.core.programs.jax_internals import put_on
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.programs.program_cache import Key, Program
from torch_xdist.core.sharding import piece
from torch_xdist.core.tapes import torch_rows
from torch_xdist.core.tapes.changing_rows import launch_of, run_by
from torch_xdist.core.tapes.partial_run import copy_rows
from torch_xdist.core.trace import donation
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Row, Tape, made_by, rows_of, types_of
from torch_xdist.dtypes import to_jax

# More are compiled: what takes Python seconds may come again.
_MOST_ROWS = 2048
# Of the rows, those that run as programs of their own, and one more.
_MOST_ALONE = 1 / 4
# How often one is computed before it is compiled: in a row, and at all.
_TIMES_IN_A_ROW, _TIMES = 2, 32
# What runs no oftener than that before another program is made comes once.
_FEW = 2
# Of how many programs it has to be known: of the same operators, of any, of so many rows in all.
_LEAST_ALIKE, _LEAST, _LEAST_OF_MANY, _MANY_ROWS = 3, 16, 4, 400
# Of as many of any operators so many may come oftener.
_MOST_OFTENER = 4
# How many keys of what was computed are remembered, by their hashes, and sequences of operators.
_REMEMBERED = 4096


class _Made(NamedTuple):
    """A program that was compiled: its operators by a hash, its rows, and how often it ran before
    another one was made."""

    name: int
    rows: int
    uses: int


_made: deque[_Made] = deque(maxlen=_LEAST)
# The one that is being compiled, or was the last: its operators and rows.
_newest: list[tuple[int, int]] = []
_seen: OrderedDict[int, int] = OrderedDict()
# The key that came last of each sequence of operators, and how often in a row.
_in_a_row: OrderedDict[int, tuple[int, int]] = OrderedDict()


def computed(launch: Launch, key: Key) -> Program | None:
    """A program that has its results already, and is not kept; None where it shall be compiled.

    Args:
        key: what it would be kept by.
    """
    rows = rows_of(launch.entries)
    if not _may_compute(launch, rows) or not _is_worth(rows, key):
        return None
    alone = sum(not torch_rows.is_computed(row[0]) for _, row in rows)
    work = sum(row[0].name != torch_rows.EMPTY for _, row in rows)
    if not alone < work <= _MOST_ROWS or alone > 1 + work * _MOST_ALONE:
        return None
    types = types_of(launch.entries)
    if not all(map(torch_rows.is_whole, types.values())):
        return None
    began_s = time.perf_counter()
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            results = _Computation(launch, types).results()
    except Exception:
        # Also a wrong value, such as an index out of range, of which the device says nothing.
        return None
    metrics.count("ComputedOnce")
    program = run_by(lambda handed, arguments: handed.append(results), launch)
    program.took_s = time.perf_counter() - began_s
    return program


def forget() -> None:
    """Know of no program that came."""
    for known in (_made, _newest, _seen, _in_a_row):
        known.clear()


def _is_worth(rows: Sequence[tuple[int, Row]], key: Key) -> bool:
    """Whether a program is likely to come a few times only; what is compiled instead is counted."""
    name = hash(tuple(row[0].name for _, row in rows))
    newest = programs.PROGRAMS.newest
    if _newest and newest is not None:
        _made.append(_Made(*_newest.pop(), newest.uses))
    is_worth = _come_once(name) and not _comes_often(name, hash(key))
    if not is_worth:
        _newest[:] = [(name, len(rows))]
    return is_worth


def _come_once(name: int) -> bool:
    """Whether programs of these operators came once, or most programs of late."""
    alike = [made.uses for made in _made if made.name == name][-_LEAST_ALIKE:]
    if alike and alike[-1] > _FEW:
        return False
    many = [*_made][-_LEAST_OF_MANY:]
    are_many = len(many) == _LEAST_OF_MANY and sum(made.rows for made in many) >= _MANY_ROWS
    oftener = sum(made.uses > _FEW for made in _made)
    return (
        (len(alike) == _LEAST_ALIKE and max(alike) <= _FEW)
        or (are_many and all(made.uses <= _FEW for made in many))
        or (len(_made) == _LEAST and oftener <= _MOST_OFTENER)
    )


def _comes_often(name: int, key: int) -> bool:
    """Whether a key was computed some times before; once more is counted."""
    times = _seen.pop(key, 0)
    _seen[key] = times + 1
    last, in_a_row = _in_a_row.pop(name, (key, 0))
    in_a_row = in_a_row + 1 if last == key else 1
    _in_a_row[name] = key, in_a_row
    for known in (_seen, _in_a_row):
        if len(known) > _REMEMBERED:
            known.popitem(last=False)  # type: ignore[attr-defined]
    return times >= _TIMES or in_a_row > _TIMES_IN_A_ROW


def _may_compute(launch: Launch, rows: Sequence[tuple[int, Row]]) -> bool:
    if launch.placement is not None or not platforms.of(launch.device.jax.platform).is_host:
        return False
    # Who asks what is compiled, and why, is shown it.
    if not settings.current().compute_once or settings.current().debug_level:
        return False
    # What the user gave away is written over, or gone.
    if any(map(donation.is_given, launch.donated)):
        return False
    if world.world_size() > 1 or torch.are_deterministic_algorithms_enabled():
        return False
    # Who looks on at what torch computes shall not see this.
    is_seen = (
        torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.is_autocast_enabled("cpu")
    )
    return not is_seen and not any(row[0].is_collective for _, row in rows)


class _Computation:
    """The rows of a launch, one after the other on the host.

    Attributes:
        env: what slots hold, as tensors that nobody may write to.
        arrays: those of the device that some of these share their memory with.
    """

    def __init__(self, launch: Launch, types: Mapping[int, TensorType]) -> None:
        self._launch = launch
        self._types = types
        self._place = put_on(launch.device.jax)
        self.env: dict[int, torch.Tensor] = {}
        self.arrays: dict[int, jax.Array] = {}

    def results(self) -> list[jax.Array]:
        """What the launch returns, as arrays of the device."""
        launch = self._launch
        for slot, buffer in zip(launch.leaves, launch.buffers):
            self.env[slot] = _leaf(piece.read(buffer)[0], self._types[slot])
        given = {tensor.untyped_storage().data_ptr() for tensor in self.env.values()}
        rows = rows_of(launch.entries)
        last = {slot: place for place, (_, row) in enumerate(rows) for slot in row[1:]}
        kept = {*launch.outs}
        for place, (first, row) in enumerate(rows):
            self._add(first, *row)
            for slot in {*row[1:]}:
                if last[slot] == place and slot not in kept:
                    del self.env[slot]
                    self.arrays.pop(slot, None)
        given.update(self.env[slot].untyped_storage().data_ptr() for slot in self.arrays)
        return [
            self.arrays[slot]
            if slot in self.arrays
            else self._place(_array(_own(self.env[slot], given)))
            for slot in launch.outs
        ]

    def _add(self, first: int, plan: Plan, *operands: int) -> None:
        if torch_rows.is_computed(plan):
            given = [self.env[slot] for slot in operands]
            with contextlib.suppress(torch_rows.Undecided):
                results = torch_rows.compute(plan, given, self._launch.tape.scalars.get(first, ()))
                made = zip(made_by(first, plan), results)
                self.env.update((slot, result) for slot, result in made if result is not None)
                return
        for slot, array in self._alone(first, plan, operands):
            self.arrays[slot] = array
            self.env[slot] = _leaf(piece.read(array)[0], self._types[slot])

    def _alone(
        self, first: int, plan: Plan, operands: Sequence[int]
    ) -> Iterator[tuple[int, jax.Array]]:
        """The results of a row that only the device computes, by slot: of a program of one row."""
        whole, tape = self._launch, Tape()
        places: dict[int, int] = {}
        for slot in dict.fromkeys(operands):
            array = self.arrays.get(slot)
            if array is None:
                array = self._place(_array(_own(self.env[slot], set())))
            places[slot] = tape.enter(self._types[slot], array)
        copy_rows(whole.tape, [first], tape, places)
        made = [slot for slot in made_by(first, plan) if slot in self._types]
        outs = tuple(places[slot] for slot in made)
        part = launch_of(whole, tape, (False,) * len(tape.buffers), outs)
        launch, program, _ = programs.find(part)
        results: list[list[Any]] = []
        programs.execute(program, launch, results)
        return zip(made, results[0])


def _leaf(array: np.ndarray, type_: TensorType) -> torch.Tensor:
    """An array as a tensor of the same memory, which nobody may write to."""
    if not array.flags.c_contiguous or array.nbytes != type_.numel * type_.dtype.itemsize:
        raise ValueError(f"an array of {array.dtype}{array.shape} for {type_}")
    if not array.size:
        return torch.empty(type_.shape, dtype=type_.dtype, device="cpu")
    return piece.bytes_of(array).view(type_.dtype).view(type_.shape)


def _own(tensor: torch.Tensor, given: set[int]) -> torch.Tensor:
    """The tensor, or a copy where it shares its memory with one that was given."""
    tensor = tensor.resolve_conj().resolve_neg()
    storage = tensor.untyped_storage()
    is_whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
    if is_whole and storage.data_ptr() not in given:
        given.add(storage.data_ptr())
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A contiguous tensor as an array of JAX's dtype of the same memory."""
    flat = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat.view(to_jax(tensor.dtype)).reshape(tensor.shape)

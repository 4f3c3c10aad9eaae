"""Rows that differ from step to step, and all others: programs of their own.

A loss of the places that a mask selects has other shapes in each step, and all that follows would
be compiled again with it: the gradients, the optimizer. Where a program is known of the same
operators of one another, and few rows differ, what would be another one runs in up to three parts:
what the rows that differ need, these, and the rest. From then on the second one alone is compiled
anew.

The parts are programs as others are, so that results are what they were; what one makes and another
reads is written to memory in between. That took no time that could be measured, so it need not be
known whether there will be a third one of that kind.
"""

import dataclasses
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from torch_xdist import metrics
from torch_xdist.core.programs import program as programs
from torch_xdist.core.programs.collective_program import is_on_mesh
from torch_xdist.core.programs.interpreter import scalar_types, scalars_of
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.programs.program_cache import Program
from torch_xdist.core.rows import aliases
from torch_xdist.core.rows.program_words import fingerprint
from torch_xdist.core.tapes.partial_run import copy_rows, needed_rows
from torch_xdist.core.trace import op_counts
from torch_xdist.core.trace.trace import Entry, Tape, is_alike, made_by, rows_of, types_of
from torch_xdist.dtypes import to_jax

# What takes less to compile is compiled soon enough.
_LEAST_S = 1.0
# Of the rows, those that are compiled each time.
_MOST_SHARE = 2 / 3
# With how many of them a new one is compared.
_COMPARED = 4

_Row = tuple[int, Any]


@dataclass(slots=True)
class _Part:
    """Some rows of a launch.

    Attributes:
        launch: they as one of their own, until its program is found.
        leaves, outs: what it reads and returns, by the slots of the whole launch.
        floats, ints: the places of what its rows are fed with, among what all are.
        ended: what no later part reads, and nobody wants.
    """

    launch: Launch | None
    leaves: list[int]
    outs: list[int]
    floats: np.ndarray
    ints: np.ndarray
    ended: list[int]
    program: Any = None


def in_parts(launch: Launch) -> tuple[Program, bool] | None:
    """A program that runs a launch in parts, and whether one of these was compiled just now.

    None where it shall be one program: it is compiled soon, or nothing is known of its kind, or
    much of it differs.
    """
    if launch.placement is not None:
        return None
    # One may be known by several keys.
    known = [*itertools.islice(dict.fromkeys(_of_its_kind(launch)), _COMPARED)]
    if not known:
        return None
    rows = rows_of(launch.entries)
    between = _between(launch, rows, _different(launch.entries, rows, known))
    if not between or len(between) > _MOST_SHARE * len(rows):
        return None
    exchanges = {slot for slot, row in rows if row[0].is_collective}
    # There all ranks run one program, and each of them has a clock of its own.
    if exchanges and is_on_mesh(launch.device.peers):
        return None
    needed = needed_rows(launch.tape, [*between])
    before = [slot for slot, _ in rows if slot in needed and slot not in between]
    # All ranks run the exchanges in one program, however each of them is parted.
    if not exchanges.isdisjoint({*before, *between}):
        return None
    after = [slot for slot, _ in rows if slot not in needed and slot not in between]
    groups = [group for group in (before, sorted(between), after) if group]
    parts = _parts(launch, groups)
    is_new = False
    for part in parts:
        assert part.launch is not None
        _, part.program, is_compiled = programs.find(part.launch)
        # Whose tape has values.
        part.launch = None
        is_new |= is_compiled
    return _whole(launch, parts), is_new


def _of_its_kind(launch: Launch) -> Iterator[tuple[Entry, ...]]:
    """The entries of programs of the same operators of one another, the last ones first."""
    for entries, program in programs.PROGRAMS.beside(launch.key()):
        takes_long = program.took_s >= _LEAST_S or program.runs_others
        is_as_long = len(entries) == len(launch.entries)
        if takes_long and is_as_long and all(map(is_alike, entries, launch.entries)):
            yield entries


def _different(
    entries: tuple[Entry, ...], rows: Sequence[_Row], known: Sequence[tuple[Entry, ...]]
) -> set[int]:
    """The rows that are others than in a known program: their plans, or what they read."""
    types = types_of(entries)
    found: set[int] = set()
    for other in known:
        others = types_of(other)
        slots = {slot for slot, type_ in types.items() if others.get(slot) != type_}
        for slot, row in rows:
            touched = (*row[1:], *made_by(slot, row[0]))
            if row[0] is not other[slot][0] or not slots.isdisjoint(touched):  # type: ignore[index]
                found.add(slot)
    return found


def _first_slots(rows: Sequence[_Row]) -> dict[int, int]:
    """The row that made each slot, by its first one."""
    return {place: slot for slot, row in rows for place in made_by(slot, row[0])}


def _between(launch: Launch, rows: Sequence[_Row], different: set[int]) -> set[int]:
    """These rows, and those that need some of them and that others of them need."""
    first = _first_slots(rows)
    depends = {*different}
    for slot, row in rows:
        if any(first.get(operand) in depends for operand in row[1:]):
            depends.add(slot)
    return depends & needed_rows(launch.tape, [*different])


def _parts(launch: Launch, groups: Sequence[list[int]]) -> list[_Part]:
    """The launches of groups of rows, none of which reads what a later one makes."""
    entries = launch.entries
    made = [_made(entries, group) for group in groups]
    read = [
        {s for slot in group for s in entries[slot][1:]} - own  # type: ignore[index]
        for group, own in zip(groups, made)
    ]
    last = {slot: place for place, slots in enumerate(read) for slot in slots}
    fed = _fed(launch)
    parts = []
    for place, (group, own, slots) in enumerate(zip(groups, made, read)):
        later: set[int] = set().union(*read[place + 1 :], launch.outs)
        ended = {slot for slot in slots if last[slot] == place} - {*launch.outs}
        part = _launch(launch, group, sorted(slots), sorted(own & later), ended)
        floats, ints = (
            np.array([i for slot in group for i in fed[slot][kind]], np.int64) for kind in (0, 1)
        )
        parts.append(_Part(part, sorted(slots), sorted(own & later), floats, ints, [*ended]))
    return parts


def _made(entries: Sequence[Entry], group: Sequence[int]) -> set[int]:
    """The slots that rows make."""
    return {place for slot in group for place in made_by(slot, entries[slot][0])}  # type: ignore[index]


def _fed(launch: Launch) -> dict[int, tuple[list[int], list[int]]]:
    """The places of each row's numbers among the floats and the ints that all rows are fed with."""
    counts = [itertools.count(), itertools.count()]
    found: dict[int, tuple[list[int], list[int]]] = {}
    for slot, row in rows_of(launch.entries):
        places: tuple[list[int], list[int]] = [], []
        for type_ in scalar_types(row[0]):
            kind = type_ is not float
            places[kind].append(next(counts[kind]))
        found[slot] = places
    return found


def _launch(
    whole: Launch,
    group: Sequence[int],
    leaves: Sequence[int],
    outs: Sequence[int],
    ended: Collection[int],
) -> Launch:
    """Some rows of a launch, with what they read as leaves: arrays, or what will be there."""
    types = types_of(whole.entries)
    given = dict(zip(whole.leaves, zip(whole.buffers, whole.mask)))
    tape, places = Tape(), dict[int, int]()
    mask = []
    for slot in leaves:
        type_ = types[slot]
        coming = jax.ShapeDtypeStruct(type_.shape, to_jax(type_.dtype))
        buffer, may_give = given.get(slot, (coming, True))
        places[slot] = tape.enter(type_, buffer)
        mask.append(may_give and slot in ended)
    copy_rows(whole.tape, group, tape, places)
    of_leaves, of_outs = ([types[slot] for slot in slots] for slots in (leaves, outs))
    results = tuple(places[slot] for slot in outs)
    return launch_of(whole, tape, aliases.of_use(mask, of_leaves, of_outs), results)


def launch_of(whole: Launch, tape: Tape, mask: tuple[bool, ...], outs: tuple[int, ...]) -> Launch:
    """The launch of rows of another one that stand on a tape of their own."""
    return dataclasses.replace(
        whole,
        tape=tape,
        entries=tuple(tape.entries),
        leaves=tuple(tape.buffers),
        mask=mask,
        outs=outs,
        buffers=tuple(tape.buffers.values()),
    )


def _go_on(
    parts: Sequence[_Part],
    done: Sequence[list[Any]],
    env: dict[int, Any],
    floats: np.ndarray,
    ints: np.ndarray,
) -> None:
    """Run the parts, from wherever the last try has come to.

    Args:
        done: the results of each part, in one element, once it ran.
        env: the arrays by slot.
    """
    for part, results in zip(parts, done):
        if not results:
            buffers, mask = [env[slot] for slot in part.leaves], part.program.mask
            over = tuple(itertools.compress(buffers, mask))
            beside = tuple(itertools.compress(buffers, map(operator.not_, mask)))
            del buffers
            arguments = over, beside, floats[part.floats], ints[part.ints]
            programs.PROGRAMS.use(part.program)
            programs.run(part.program, arguments, results, "ExecuteTime")
        env.update(zip(part.outs, results[0]))
        results[0] = ()
        for slot in part.ended:
            env.pop(slot, None)


def _whole(launch: Launch, parts: Sequence[_Part]) -> Program:
    """What runs the parts one after the other, as one program would run."""
    given = [*itertools.compress(launch.leaves, launch.mask)]
    held = [*itertools.compress(launch.leaves, map(operator.not_, launch.mask))]
    outs = launch.outs

    # It lives as long as the program, so it must hold nothing of the launch.
    def run(results: list[list[Any]], arguments: Sequence[Any]) -> None:
        donated, kept, floats, ints = arguments
        env = {**dict(zip(given, donated)), **dict(zip(held, kept))}
        done: list[list[Any]] = [[] for _ in parts]
        metrics.count("RanInParts")
        try:
            _go_on(parts, done, env, floats, ints)
            results.append([env[slot] for slot in outs])
        except KeyboardInterrupt:
            # What was given away is gone: what comes in its stead shall be there.
            _go_on(parts, done, env, floats, ints)
            if not results:
                results.append([env[slot] for slot in outs])
            raise

    return run_by(run, launch, "".join(part.program.collectives for part in parts))


def run_by(
    run: Callable[[list[list[Any]], Sequence[Any]], None], launch: Launch, collectives: str = ""
) -> Program:
    """The program of a launch that `run` runs: it appends the results, given the arguments."""
    rows = rows_of(launch.entries)
    numbers = scalars_of(launch.tape, launch.entries)
    return Program(
        executable=None,
        outs=launch.outs,
        mask=launch.mask,
        fingerprint=fingerprint(launch.entries),
        collectives=collectives,
        rows=len(rows),
        plans=frozenset(row[0] for _, row in rows),
        scalars=(len(numbers[0]), len(numbers[1])),
        tally=op_counts.tally_of(row for _, row in rows),
        run_tally=(),
        run=run,
        runs_others=True,
    )

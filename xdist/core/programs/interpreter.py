"""Walking the rows of a tape through their lowerings, on JAX arrays."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_xdist.core.programs.locations import Scope, no_scope
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.trace import Entry, Tape, rows_of


class ScalarFeed:
    """The runtime scalars of a program, handed out in the order its rows use them.

    Args:
        seeds: where in `ints` the seed of each random row stands, if all of them are known.
    """

    def __init__(self, floats: Any, ints: Any, seeds: Sequence[int] = ()) -> None:
        self.floats = floats
        self.ints = ints
        self.next_float = 0
        self.next_int = 0
        # All at once: each would be a loop of its own, to compile and to run.
        self.keys = iter(_keys(ints, seeds) if len(seeds) > 1 else ())

    def take(self, type_: type) -> Any:
        if type_ is float:
            self.next_float += 1
            return self.floats[self.next_float - 1]
        self.next_int += 1
        return self.ints[self.next_int - 1]

    def key(self) -> jax.Array:
        """The key of a random row: its seed and its counter."""
        seed, counter = self.take(int), self.take(int)
        key = next(self.keys, None)
        return _key(seed, counter) if key is None else key


def _key(seed: Any, counter: Any) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), counter)


def _keys(ints: Any, seeds: Sequence[int]) -> jax.Array:
    places = np.asarray(seeds)
    return jax.vmap(_key)(ints[places], ints[places + 1])


def interpret(
    entries: Sequence[Entry], env: dict[int, Any], scalars: ScalarFeed, scope: Scope = no_scope
) -> None:
    """Compute every row, entering its results into `env`, which holds the leaves."""
    for slot, row in rows_of(entries):
        with scope(slot):
            given, key = inputs_of(row[0], scalars)
            results = row[0].compute([env[operand] for operand in row[1:]], given, key)
        env.update(enumerate(results, slot))


def inputs_of(plan: Plan, scalars: ScalarFeed) -> tuple[list[Any], Any]:
    """The next row's runtime scalars, and its key where it is random."""
    given = [scalars.take(type_) for type_ in plan.scalar_types]
    return given, scalars.key() if plan.is_random else None


def scalar_types(plan: Plan) -> tuple[type, ...]:
    """The types of what a row is fed with: its runtime scalars, then seed and counter."""
    return (*plan.scalar_types, int, int) if plan.is_random else plan.scalar_types


def seeds_of(entries: Sequence[Entry]) -> list[int]:
    """Where among the ints that rows are fed with the seed of each random row stands."""
    found: list[int] = []
    count = 0
    for _, (plan, *_) in rows_of(entries):
        count += sum(type_ is not float for type_ in scalar_types(plan))
        if plan.is_random:
            found.append(count - 2)
    return found


def scalars_of(tape: Tape, entries: Sequence[Entry]) -> tuple[list[float], list[int]]:
    """What the rows are fed with, as a program takes it: floats and ints apart, in order.

    A row whose recording was interrupted has none; nobody reads its results, so zeros do.
    """
    floats: list[float] = []
    ints: list[int] = []
    for slot, row in rows_of(entries):
        types = scalar_types(row[0])
        if types:
            given = tape.scalars.get(slot) or (0,) * len(types)
            for type_, number in zip(types, given):
                if type_ is float:
                    floats.append(number)
                else:
                    ints.append(number)  # type: ignore[arg-type]
    return floats, ints

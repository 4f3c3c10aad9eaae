"""Walking the rows of a tape through their lowerings, on JAX arrays."""

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from torch_xdist.core.programs.locations import Scope, no_scope
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.trace import Entry, Row, Tape, rows_of
from torch_xdist.ops import apart, forms, keys
from torch_xdist.ops.settled import settled


class ScalarFeed:
    """The runtime scalars of a program, handed out in the order its rows use them.

    Args:
        seeds: where in `ints` the seed of each random row stands, if all of them are known.
        apart: what rows do that read theirs at places which XLA does not know.
    """

    def __init__(
        self, floats: Any, ints: Any, seeds: Sequence[int] = (), apart: Collection[Plan] = ()
    ) -> None:
        self.floats = floats
        self.ints = ints
        self.apart = apart
        self.next_float = 0
        self.next_int = 0
        # All at once: each would be a loop of its own, to compile and to run.
        self.keys = iter(_keys(ints, seeds) if len(seeds) > 1 else ())

    def take(self, type_: type, at: Callable[[Any, int], Any] = operator.getitem) -> Any:
        if type_ is float:
            self.next_float += 1
            return at(self.floats, self.next_float - 1)
        self.next_int += 1
        return at(self.ints, self.next_int - 1)

    def key(self) -> jax.Array:
        """The key of a random row: its seed and its counter."""
        seed, counter = self.take(int), self.take(int)
        key = next(self.keys, None)
        return keys.folded(seed, counter) if key is None else key


def _keys(ints: Any, seeds: Sequence[int]) -> list[jax.Array]:
    places = np.asarray(seeds)
    made = keys.folded(ints[places], ints[places + 1])
    return apart.rows(made) if forms.chosen().hashes_straight else list(made)


def interpret(
    entries: Sequence[Entry],
    env: dict[int, Any],
    scalars: ScalarFeed,
    scope: Scope = no_scope,
    *,
    to_settle: Collection[int] = (),
    is_traced: bool = False,
    after: Mapping[int, Callable[[], Any]] = MappingProxyType({}),
) -> None:
    """Compute every row, entering its results into `env`, which holds the leaves.

    Args:
        to_settle: slots of rows whose result is computed once on a CPU (`rows/long_chains.py`).
        is_traced: inside a function that JAX traces; then rows of one plan are traced once.
        after: what is called once the results of a row are there, by its first slot.
    """
    rows = rows_of(entries)
    copied = _copied_plans(rows) if is_traced and scope is no_scope else {}
    for slot, row in rows:
        plan = row[0]
        # A constant that its dtype does not hold becomes an infinity without a word of numpy's.
        with scope(slot), np.errstate(over="ignore"):
            given, key = inputs_of(plan, scalars)
            compute = copied.get(plan, plan.compute)
            results = compute([env[operand] for operand in row[1:]], given, key)
        if slot in to_settle:
            results = [settled(results[0]), *results[1:]]
        env.update(enumerate(results, slot))
        if slot in after:
            after[slot]()


def _copied_plans(rows: Sequence[tuple[int, Row]]) -> dict[Plan, Any]:
    """For each plan of several rows a function whose equations JAX copies for each of them.

    So a network of 48 equal layers takes half the time to trace, and its program is the same. What
    it copies goes with these functions.
    """
    counts = Counter(row[0] for _, row in rows)
    return {plan: _copied(plan) for plan, n in counts.items() if n > 1 and _stands_alone(plan)}


def _copied(plan: Plan) -> Any:
    # A function of its own: JAX keeps what it traced as long as the function it was given.
    def compute(operands: Any, scalars: Any, key: Any) -> Any:
        return plan.compute(operands, scalars, key)  # type: ignore[misc]

    return jax.jit(compute, inline=True)


def _stands_alone(plan: Plan) -> bool:
    """Whether a row depends on nothing but its operands: collectives hand a token on."""
    return not (plan.is_collective or plan.name.startswith("xla"))


def inputs_of(plan: Plan, scalars: ScalarFeed) -> tuple[list[Any], Any]:
    """The next row's runtime scalars, and its key where it is random."""
    at = apart.row if plan in scalars.apart else operator.getitem
    given = [scalars.take(type_, at) for type_ in plan.scalar_types]
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

"""Walking the rows of a trace through their recipes, on JAX arrays."""

from collections.abc import Sequence
from typing import Any

import jax

from torch_xdist.core.plan import Plan

Row = tuple[Any, ...]


def result_slots(rows: Sequence[Row], leaf_slots: set[int]) -> list[int]:
    """The first result slot of each row. Slots are numbered as rows and leaves were entered."""
    starts = []
    slot = 0
    for row in rows:
        while slot in leaf_slots:
            slot += 1
        starts.append(slot)
        slot += len(row[0].kinds)
    return starts


class Numbers:
    """The runtime scalars of a trace, handed out in the order the rows use them."""

    def __init__(self, floats: Any, ints: Any) -> None:
        self.floats = floats
        self.ints = ints
        self.next_float = 0
        self.next_int = 0

    def take(self, type_: type) -> Any:
        if type_ is float:
            self.next_float += 1
            return self.floats[self.next_float - 1]
        self.next_int += 1
        return self.ints[self.next_int - 1]

    def key(self) -> jax.Array:
        """The key of a random row: its seed and its counter."""
        seed, counter = self.take(int), self.take(int)
        return jax.random.fold_in(jax.random.key(seed), counter)


def walk(
    rows: Sequence[Row],
    starts: Sequence[int],
    env: dict[int, Any],
    numbers: Numbers,
    number_types: dict[Plan, list[type]],
) -> None:
    """Compute every row, entering its results into `env`."""
    for row, start in zip(rows, starts):
        plan = row[0]
        scalars = [numbers.take(t) for t in number_types[plan]]
        key = numbers.key() if plan.is_random else None
        results = plan.recipe([env[slot] for slot in row[1:]], scalars, key)
        for offset, value in enumerate(results):
            env[start + offset] = value

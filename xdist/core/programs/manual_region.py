"""Rows that compute on each device's part of an array by itself, inside a sharded program.

Between `full_to_shard` and `shard_to_full` a tensor stands for what its device holds, and only
collectives that the user calls exchange data. Such rows run together inside `jax.shard_map`; the
rows of the whole arrays run around it, as XLA's partitioner places them.
"""

from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from torch_xdist.collectives import inside
from torch_xdist.core.programs.interpreter import ScalarFeed, inputs_of
from torch_xdist.core.programs.locations import Scope
from torch_xdist.core.sharding.layout import Layout, padded, unpadded
from torch_xdist.core.trace.trace import Entry, Row, rows_of

FULL_TO_SHARD = "xla.spmd_full_to_shard_shape"
SHARD_TO_FULL = "xla.spmd_shard_to_full_shape"


def manual_slots(entries: Sequence[Entry], leaves: Collection[int]) -> set[int]:
    """The slots that stand for each device's own part, given the leaves that do."""
    found = set(leaves)
    for first, (plan, *operands) in rows_of(entries):
        is_manual = plan.name == FULL_TO_SHARD or not found.isdisjoint(operands)
        if is_manual and plan.name != SHARD_TO_FULL:
            found.update(range(first, first + len(plan.types)))
    return found


def interpret_regions(
    entries: Sequence[Entry],
    env: dict[int, Any],
    scalars: ScalarFeed,
    layout: Layout,
    manual: set[int],
    scope: Scope,
) -> None:
    """Compute every row; in `env` the parts of all devices are stacked."""
    rows = rows_of(entries)
    last_use = {slot: index for index, (_, row) in enumerate(rows) for slot in row[1:]}
    region = _Region(layout, manual, scope)
    for index, (first, row) in enumerate(rows):
        given, key = inputs_of(row[0], scalars)
        if first in manual or row[0].name == SHARD_TO_FULL:
            region.add(first, row, (given, key))
            continue
        if not region.full.keys().isdisjoint(row[1:]):
            region.run(env, {slot for slot in manual if last_use.get(slot, -1) > index})
            region = _Region(layout, manual, scope)
        with scope(first):
            results = row[0].compute([env[operand] for operand in row[1:]], given, key)
        env.update(enumerate(results, first))
    region.run(env, manual)


class _Region:
    """Rows that run together on each device's parts."""

    def __init__(self, layout: Layout, manual: set[int], scope: Scope) -> None:
        self.scope = scope
        self.layout = layout
        self.manual = manual
        self.rows: list[tuple[int, Row]] = []
        self.inputs: list[Any] = []
        self.entering: dict[int, Row] = {}
        self.full: dict[int, Row] = {}
        self.made: set[int] = set()

    def add(self, first: int, row: Row, inputs: Any) -> None:
        """Append a row with the scalars it is fed."""
        if row[0].name == FULL_TO_SHARD:
            self.entering[first] = row
        elif row[0].name == SHARD_TO_FULL:
            self.full[first] = row
        else:
            self.rows.append((first, row))
            self.inputs.append(inputs)
        self.made.update(range(first, first + len(row[0].types)))

    def run(self, env: dict[int, Any], wanted: set[int]) -> None:
        """Compute all rows; of the parts those that are wanted later are stacked."""
        if not self.made:
            return
        used = [slot for _, row in [*self.rows, *self.full.items()] for slot in row[1:]]
        reads = [slot for slot in dict.fromkeys(used) if slot not in self.made]
        kept = sorted((self.made & wanted) - self.full.keys())
        each, spec = PartitionSpec(self.layout.axes), self._spec
        mapped = jax.shard_map(
            lambda *given: self._on_each(reads, kept, *given),
            mesh=self.layout.mesh,
            in_specs=(
                [each if slot in self.manual else PartitionSpec() for slot in reads],
                [spec(row[0].args[-1]) for row in self.entering.values()],
                PartitionSpec(),
            ),
            out_specs=(
                [spec(row[0].args[-1][0]) for row in self.full.values()],
                [each] * len(kept),
            ),
            check_vma=False,
        )
        entering = [
            padded(env[row[1]], row[0].args[-1].padded_shape(env[row[1]].shape))
            for row in self.entering.values()
        ]
        wholes, stacked = mapped([env[slot] for slot in reads], entering, self.inputs)
        for (first, row), x in zip(self.full.items(), wholes):
            env[first] = unpadded(x, row[0].types[0].shape)
        env.update(zip(kept, stacked))

    def _spec(self, tiling: Any) -> PartitionSpec:
        return self.layout.sharding(tiling).spec

    def _on_each(
        self, reads: Sequence[int], kept: Sequence[int], arrays: Any, entering: Any, inputs: Any
    ) -> Any:
        """What each device computes on its parts."""
        local = {slot: x[0] if slot in self.manual else x for slot, x in zip(reads, arrays)}
        local.update(zip(self.entering, entering))
        with inside.program("manual", self.layout.count, axes=self.layout.axes_of_groups):
            for (first, row), (given, key) in zip(self.rows, inputs):
                with self.scope(first):
                    results = row[0].compute([local[slot] for slot in row[1:]], given, key)
                local.update(enumerate(results, first))
        return [local[row[1]] for row in self.full.values()], [local[slot][None] for slot in kept]

"""A graph: the rows of a tape that some slots need, as a JAX function of its leaves.

Parameters stand in torch_xla's order: as they are met on the way to the roots, the last operand of
a row first. Marked regions become composites, and rows that `write_mlir_debuginfo` was asked for
carry their text as their scope.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from torch_xdist.core.programs.interpreter import ScalarFeed, inputs_of, scalar_types
from torch_xdist.core.tapes.partial_run import post_order
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Row, Tape, rows_of
from torch_xdist.dtypes import to_jax
from torch_xdist.export import dynamic, quantized
from torch_xdist.export.composites import Composite, composites_of
from torch_xdist.export.debug_info import labels_of, scope

Arrays = dict[int, Any]


@dataclass(frozen=True, slots=True)
class Number:
    """A runtime scalar that is a parameter of its own: which one of which row."""

    slot: int
    place: int
    value: np.generic


class Graph:
    """What `roots` need of a tape.

    Attributes:
        leaves: the slots of its leaves, in the order of the parameters.
        types: of all slots that have one.
        numbers: the runtime scalars that are parameters, behind the leaves.
        labels: what debug information was asked for, by the slot of a row.
    """

    def __init__(
        self,
        tape: Tape,
        roots: Sequence[int],
        *,
        inline_numbers: bool,
        constants: Mapping[int, np.ndarray] = MappingProxyType({}),
        value_of: Callable[[int], np.ndarray | None] = lambda slot: None,
    ) -> None:
        """Of these roots.

        Args:
            inline_numbers: let every runtime scalar be a constant, not only 0 and 1.
            constants: leaves that are no parameters, by slot.
            value_of: the array of a leaf, where one is there; only of quantized types.
        """
        self.roots = tuple(roots)
        self._scalars: Mapping[int, tuple[int | float, ...]] = tape.scalars
        self._rows: dict[int, Row] = {}
        self._first: dict[int, int] = {}
        for slot, row in rows_of(tape.entries):
            self._rows[slot] = row
            for place in range(slot, slot + max(1, len(row[0].types))):
                self._first[place] = slot
        needed = post_order([self._row_at(root) for root in self.roots], self._operands)
        self._constants = constants
        self._value_of = value_of
        self.leaves = [s for s in needed if s not in self._rows and s not in constants]
        rows = {slot: self._rows[slot] for slot in needed if slot in self._rows}
        self.types = {slot: _leaf_type(tape.entries[slot]) for slot in self.leaves}
        self.labels = labels_of(rows, self._first)
        self.composites = composites_of(rows)
        self._unit = {s: c.outputs[0] for c in self.composites.values() for s in c.outputs}
        self.has_quantized = any(quantized.is_quantized(row[0]) for row in rows.values())
        self.numbers = [] if inline_numbers else self._parameters(rows)

    def function(self, *, for_readers: bool = False) -> Callable[..., list[Any]]:
        """The JAX function of its leaves, then its numbers, that computes its roots.

        Args:
            for_readers: mark what is quantized for `quantized.with_types`, instead of computing it.
        """

        def graph(*arrays: Any) -> list[Any]:
            env: Arrays = {**self._constants, **dict(zip(self.leaves, arrays))}
            given = {
                (number.slot, number.place): array
                for number, array in zip(self.numbers, arrays[len(self.leaves) :])
            }
            return self._values(self.roots, env, _Call(given, for_readers), frozenset())

        return graph

    def parameters(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the function's parameters."""
        leaves = [
            jax.ShapeDtypeStruct(type_.shape, to_jax(type_.dtype)) for type_ in self.types.values()
        ]
        return [*leaves, *(jax.ShapeDtypeStruct((), n.value.dtype) for n in self.numbers)]

    def _row_at(self, slot: int) -> int:
        """The first slot of the row that makes a slot; a leaf's own."""
        return self._first.get(slot, slot)

    def _operands(self, slot: int) -> list[int]:
        row = self._rows.get(slot)
        return [] if row is None else [self._row_at(operand) for operand in row[1:]]

    def _parameters(self, rows: Mapping[int, Row]) -> list[Number]:
        """The runtime scalars that are no constants everywhere, as 0 and 1 are."""
        found = []
        for slot, row in sorted(rows.items()):
            for place, number in enumerate(self._numbers_of(slot)[: len(row[0].scalar_types)]):
                if number not in (0, 1):
                    found.append(Number(slot, place, _as_parameter(row[0], number)))
        return found

    def _numbers_of(self, slot: int) -> tuple[int | float, ...]:
        types = scalar_types(self._rows[slot][0])
        return self._scalars.get(slot) or (0,) * len(types)

    def _values(
        self,
        roots: Sequence[int],
        env: Arrays,
        call: "_Call",
        inside: frozenset[int],
    ) -> list[Any]:
        """The arrays of these slots; `inside`: the composites whose bodies are computed."""

        def operands(slot: int) -> list[int]:
            if slot in env:
                return []
            composite = self._composite(slot, inside)
            if composite is not None:
                return [self._unit_at(s, inside) for s in composite.operands]
            return [self._unit_at(operand, inside) for operand in self._operands(slot)]

        for slot in post_order([self._unit_at(root, inside) for root in roots], operands):
            if slot in env:
                continue
            composite = self._composite(slot, inside)
            if composite is None:
                env.update(enumerate(self._row(slot, env, call), slot))
            else:
                env.update(zip(composite.outputs, self._composed(composite, env, call, inside)))
        return [env[root] for root in roots]

    def _unit_at(self, slot: int, inside: frozenset[int]) -> int:
        """What is computed at once with a slot: its row, or the composite whose result it is."""
        slot = self._row_at(slot)
        unit = self._unit.get(slot, slot)
        return slot if unit in inside else unit

    def _composite(self, slot: int, inside: frozenset[int]) -> Composite | None:
        return None if slot in inside else self.composites.get(slot)

    def _row(self, slot: int, env: Arrays, call: "_Call") -> list[Any]:
        plan, *operands = self._rows[slot]
        if call.for_readers:
            type_ = quantized.type_of(plan, lambda index: self._known(operands[index]))
            if type_ is not None:
                return [call.once(plan, type_, env[operands[0]])]
        arrays = dynamic.broadcast_together(plan, [env[operand] for operand in operands])
        numbers = [
            call.given.get((slot, place), _as_number(number))
            for place, number in enumerate(self._numbers_of(slot))
        ]
        feed = ScalarFeed(
            [n for t, n in zip(scalar_types(plan), numbers) if t is float],
            [n for t, n in zip(scalar_types(plan), numbers) if t is not float],
        )
        scalars, key = inputs_of(plan, feed)
        with scope(self.labels.get(slot)):
            return plan.compute(arrays, scalars, key)  # type: ignore[misc]

    def _known(self, slot: int) -> np.ndarray | None:
        """The array at a slot, where no run is needed to tell it."""
        if slot in self._rows:
            return None
        return self._constants.get(slot, self._value_of(slot))

    def _composed(
        self, composite: Composite, env: Arrays, call: "_Call", inside: frozenset[int]
    ) -> Sequence[Any]:
        """The results of a composite, whose numbers are constants."""

        def body(*arrays: Any, **attributes: Any) -> tuple[Any, ...]:
            inner = dict(zip(composite.operands, arrays))
            within = inside | {composite.outputs[0]}
            return tuple(self._values(composite.outputs, inner, in_body, within))

        in_body = _Call({}, call.for_readers)
        composed = jax.lax.composite(body, composite.name)
        return composed(*(env[slot] for slot in composite.operands), **composite.attributes)  # type: ignore[no-any-return]


class _Call:
    """One tracing of a graph: its numbers that are parameters, and what it marked already."""

    def __init__(self, given: Mapping[tuple[int, int], Any], for_readers: bool) -> None:
        self.given = given
        self.for_readers = for_readers
        self._marked: dict[Any, Any] = {}

    def once(self, plan: Plan, type_: quantized.QuantizedType, operand: Any) -> Any:
        """A quantized row, marked; equal ones are one, which MLIR would not find."""
        key = plan, id(operand)
        if key not in self._marked:
            # The operand too: its id is its own while it lives.
            self._marked[key] = operand, quantized.marked(plan, type_, operand)
        return self._marked[key][1]


def _leaf_type(entry: Any) -> TensorType:
    """The type of a leaf, or of an operand of a recorded function."""
    return entry if isinstance(entry, TensorType) else entry[0]


def _as_number(number: int | float) -> np.generic:
    return np.float64(number) if isinstance(number, float) else np.int64(number)


def _as_parameter(plan: Plan, number: int | float) -> np.generic:
    """A number in the dtype its row computes in: the result's, where that is a floating one."""
    out = next((type_ for type_ in plan.types if type_ is not None), None)
    if out is None or not out.dtype.is_floating_point:
        return _as_number(number)
    return to_jax(out.dtype).type(number)  # type: ignore[no-any-return]

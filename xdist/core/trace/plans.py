"""Plans: everything about a row that is worked out once, and the one table of them.

A `Plan` is an operator with its static arguments and operand types: its result types come from
torch's own meta kernels, so errors are raised at the user's line in torch's words. Equal calls have
the same plan; a row of a tape starts with one, so rows are compared by identity.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.core.trace.operators import Op
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.dtypes import to_jax

# How the results of a plan are handed back.
SINGLE, TUPLE, LIST, NOTHING = range(4)
# How dispatch.py records it: by the general path, or by itself one of one result, one of several,
# or one that writes its first operand.
GENERAL, RESULT, RESULTS, WRITE = range(4)
# compute(operands, scalars, key): the results of a row as JAX arrays. `key` is that of a random
# row, else None.
Compute = Callable[[Sequence[jax.Array], Sequence[Any], Any], list[Any]]


class Param:
    """Stands in a plan's arguments where tensor operand `index` goes."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    # Part of a program's fingerprint, which ranks compare: no address may be in it.
    def __repr__(self) -> str:
        return f"%{self.index}"


class ScalarParam:
    """Stands in a plan's arguments where the next runtime scalar of this type goes."""

    __slots__ = ("type",)

    def __init__(self, type_: type) -> None:
        self.type = type_

    def __repr__(self) -> str:
        return f"<{self.type.__name__}>"


class Plan:
    """A row's static part. Compared by identity; its repr says it in words.

    Args:
        name: of the overload, or of our own operator.
        op: the overload; None for an operator of our own.
        args, kwargs: with Params and ScalarParams where operands and runtime scalars go.
        types: of the results; None where torch has no tensor.
        structure: how the results are handed back.
        lowering: computes it, given JAX arrays as arguments; None: the table's, or a decomposition.
        inverse: for a view step: the parent's array after a write of the view's.
    """

    __slots__ = (
        "args",
        "compute",
        "description",
        "follows_default_dtype",
        "further",
        "inverse",
        "is_collective",
        "is_random",
        "kwargs",
        "lowering",
        "name",
        "numbers_fit",
        "op",
        "operand_types",
        "path",
        "programs",
        "scalar_types",
        "structure",
        "types",
    )

    def __init__(
        self,
        name: str,
        op: Op | None,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operand_types: Sequence[TensorType],
        types: Sequence[TensorType | None],
        structure: int,
        *,
        lowering: Callable[..., Any] | None = None,
        inverse: Callable[..., Any] | None = None,
        is_collective: bool = False,
    ) -> None:
        self.name = name
        self.op = op
        self.args = tuple(args)
        self.kwargs = kwargs
        self.operand_types = tuple(operand_types)
        self.types = tuple(types)
        self.structure = structure
        self.lowering = lowering
        self.inverse = inverse
        self.is_collective = is_collective
        self.is_random = False
        self.path = GENERAL
        # What stands behind its row on a tape: a place for each result after the first.
        self.further = (None,) * (len(self.types) - 1)
        # Its results have torch's default dtype, so its key is not enough to find it by.
        self.follows_default_dtype = False
        marks = flat((self.args, tuple(kwargs.values())))
        self.scalar_types = tuple(mark.type for mark in marks if isinstance(mark, ScalarParam))
        self.compute: Compute | None = None if lowering is None else computed_by(self, lowering)
        # Whether CPU torch took numbers here that the dtype of the results does not hold.
        self.numbers_fit = False
        # How many compiled programs hold it.
        self.programs = 0
        # What it is in every process (`description`), once somebody asked.
        self.description: str | None = None

    def __repr__(self) -> str:
        operands = ", ".join(map(repr, self.operand_types))
        return f"{self.name}({operands}) -> {list(self.types)}"


class CpuOnly:
    """Stands in the table for a call that only the CPU can compute.

    Args:
        error: what its lowering raised, which is a mistake in the lowering; None where it has none.
    """

    __slots__ = ("error", "programs")
    path = GENERAL
    follows_default_dtype = False

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.programs = 0


def jax_plan(
    name: str,
    lowering: Callable[..., Any],
    operand_types: Sequence[TensorType],
    types: Sequence[TensorType],
    *static: Any,
    inverse: Callable[..., Any] | None = None,
    **named: Any,
) -> Plan:
    """A plan of our own: `lowering(*operands, *static, **named)`, without promotion."""
    args = (*(Param(i) for i in range(len(operand_types))), *static)
    return Plan(
        name, None, args, named, operand_types, types, SINGLE, lowering=lowering, inverse=inverse
    )


def computed_by(plan: Plan, lowering: Callable[..., Any]) -> Compute:
    """How a plan is computed by a lowering that takes its operands as they are."""

    def compute(operands: Sequence[jax.Array], scalars: Sequence[Any], key: Any) -> list[Any]:
        given = iter(scalars)
        args = [fill(mark, operands, given) for mark in plan.args]
        named = {name: fill(mark, operands, given) for name, mark in plan.kwargs.items()}
        return fit(plan, lowering(*args, **named))

    return compute


def fill(mark: Any, operands: Sequence[Any], scalars: Iterator[Any]) -> Any:
    """An argument of a plan with operands and runtime scalars in their places."""
    if isinstance(mark, Param):
        return operands[mark.index]
    if isinstance(mark, ScalarParam):
        return next(scalars)
    if isinstance(mark, tuple | list):
        return type(mark)(fill(part, operands, scalars) for part in mark)
    return mark


def fit(plan: Plan, result: Any) -> list[Any]:
    """What a lowering returned, flat, in the dtypes torch says; shapes must already be right."""
    values = list(flat(result))
    if len(values) != len(plan.types):
        raise TypeError(
            f"{plan.name}: its lowering gave {len(values)} results, not {len(plan.types)}"
        )
    return [_fit_one(plan, i, x, type_) for i, (x, type_) in enumerate(zip(values, plan.types))]


def _fit_one(plan: Plan, index: int, value: Any, type_: TensorType | None) -> Any:
    if type_ is None:
        return jnp.zeros(())
    if value is None:
        value = jnp.zeros(type_.shape)
    value = jnp.asarray(value)
    # One with a symbol for a size is an export's, whose plan has the size of an example.
    is_known = all(isinstance(size, int) for size in value.shape)
    if is_known and value.shape != type_.shape:
        raise TypeError(
            f"{plan.name}: result {index} of its lowering has shape {value.shape}, "
            f"torch says {type_.shape}"
        )
    dtype = to_jax(type_.dtype)
    if value.dtype == dtype:
        return value
    if value.dtype.kind == "c" and dtype.kind != "c":
        value = value.real
    return value.astype(dtype)


def flat(value: Any) -> Iterator[Any]:
    """What stands inside nested tuples and lists, in order."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from flat(part)
    else:
        yield value


class PlanTable:
    """The plan of each call that was seen. The only table of plans.

    What no compiled program holds any more is dropped, so a job whose shapes never repeat keeps
    only what its cached programs need.
    """

    _FIRST_SWEEP = 8192
    # Plans whose last program went, before a sweep, and for each that is looked at then.
    _LEAST_FREE = 128
    _FREE_PER_PLAN = 1 / 4

    def __init__(self) -> None:
        self.plans: dict[Hashable, Plan | CpuOnly] = {}
        self._sweep_at = self._FIRST_SWEEP
        self._free = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.plans)

    def find(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """The plan of a key; made by `make` the first time."""
        plan = self.plans.get(key)
        # Where two threads make it, the first one's stays: there is one plan for a key.
        return plan if plan is not None else self.plans.setdefault(key, make())  # type: ignore[return-value]

    def hold(self, plans: Iterable[Plan]) -> None:
        """A compiled program holds these plans."""
        with self._lock:
            for plan in plans:
                plan.programs += 1

    def release(self, plans: Iterable[Plan]) -> None:
        """A compiled program that held these plans is gone."""
        with self._lock:
            for plan in plans:
                plan.programs -= 1
                self._free += plan.programs <= 0

    def sweep(self) -> None:
        """Drop what no program holds, where programs went or the table has doubled.

        Called between steps: a plan that is dropped while a tape holds it is made anew, and the
        program with it.
        """
        held = len(self.plans)
        if held < self._sweep_at and self._free <= self._LEAST_FREE + held * self._FREE_PER_PLAN:
            return
        with self._lock:
            self._free = 0
            for key, plan in list(self.plans.items()):
                if plan.programs <= 0:
                    self.plans.pop(key, None)
            self._sweep_at = max(self._FIRST_SWEEP, 2 * len(self.plans))

    def clear(self) -> None:
        """Forget every plan."""
        with self._lock:
            self.plans.clear()


PLANS = PlanTable()

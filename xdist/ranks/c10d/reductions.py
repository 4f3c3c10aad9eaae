"""What the reductions of torch.distributed do: one of the transports', with factors around it.

The same object serves arrays inside a program and CPU tensors between hosts.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.distributed import ReduceOp

_NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "sum",
    ReduceOp.PREMUL_SUM: "sum",
    ReduceOp.PRODUCT: "mul",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "and",
    ReduceOp.BOR: "or",
    ReduceOp.BXOR: "xor",
}

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "mul": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over the members of a group.

    Attributes:
        name: sum, mul, min, max, and, or, xor.
        factor: each member's values are multiplied by it before.
        parts: the result is divided by it.
    """

    name: str
    factor: float = 1.0
    parts: int = 1

    def before(self, x: jax.Array) -> jax.Array:
        """What a member brings."""
        return x if self.factor == 1 else (x * self.factor).astype(x.dtype)

    def after(self, x: jax.Array) -> jax.Array:
        """What becomes of the members' reduced values."""
        if self.parts == 1:
            return x
        whole = jnp.issubdtype(x.dtype, jnp.integer)
        return x // self.parts if whole else (x / self.parts).astype(x.dtype)

    def of_tensors(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """The reduction of CPU tensors, one per member."""
        if self.factor != 1:
            values = [(value * self.factor).to(value.dtype) for value in values]
        total = functools.reduce(_COMBINE[self.name], values)
        if self.parts == 1:
            return total
        fractions = total.is_floating_point() or total.is_complex()
        return total.div(self.parts) if fractions else total // self.parts


def reduction(op: Any, members: int, *, of: str) -> Reduction:
    """What `op` of torch.distributed (a ReduceOp, or options that hold one) means.

    `of` names the collective in errors.
    """
    op = getattr(op, "reduceOp", op)
    for known, name in _NAMES.items():
        if op == known:
            return Reduction(name, _factor(op, of), members if known == ReduceOp.AVG else 1)
    raise NotImplementedError(
        f"{of}: the xla backend does not have {op}; use one of SUM, AVG, PREMUL_SUM(factor), "
        "PRODUCT, MIN, MAX, BAND, BOR, BXOR, or scale the tensor yourself"
    )


def _factor(op: Any, of: str) -> float:
    """The factor that torch keeps inside a PREMUL_SUM; other reductions have none."""
    if op != ReduceOp.PREMUL_SUM:
        return 1.0
    held = op.__getstate__()
    if not isinstance(held, tuple):  # ReduceOp.PREMUL_SUM itself
        raise ValueError(f"{of}: PREMUL_SUM has no factor; give it one: ReduceOp.PREMUL_SUM(0.5)")
    return float(held[1])

"""The lowering table: for each ATen overload, the function that computes it on JAX arrays.

Every module of this folder fills it when it is imported; `core/record/lowering.py` reads it while a
program is built. Keys are strings such as ``"aten.add.Tensor"``, never looked up at import, so a
release of torch that lacks an operator loses that row only.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Lowering = Callable[..., Any]
_F = TypeVar("_F", bound=Lowering)

LOWERINGS: dict[str, Lowering] = {}
RANDOM: set[str] = set()
STRIDED: set[str] = set()
SHAPED: set[str] = set()


def add_rows(rows: Mapping[str, Lowering]) -> None:
    """Enter lowerings that take JAX's arguments in torch's order."""
    for name, lowering in rows.items():
        _enter(name, lowering)


def lowers(
    *names: str, random: bool = False, strided: bool = False, shaped: bool = False
) -> Callable[[_F], _F]:
    """Enter the decorated function under each name.

    `random`: its first parameter is a key. `strided`: it takes a keyword `contiguous`, for each
    tensor operand whether its nominal strides are contiguous, which some gradients depend on.
    `shaped`: shapes and dtypes of the results are the lowering's, not those of a meta kernel.
    """

    def enter(lowering: _F) -> _F:
        for name in names:
            _enter(name, lowering)
            if random:
                RANDOM.add(name)
            if strided:
                STRIDED.add(name)
            if shaped:
                SHAPED.add(name)
        return lowering

    return enter


def _enter(name: str, lowering: Lowering) -> None:
    if name in LOWERINGS:
        raise ValueError(f"lowering table: {name} has two rows; keep one")
    LOWERINGS[name] = lowering

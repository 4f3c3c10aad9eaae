"""What torch's functions ask of its symbolic shapes, for shapes of which nothing is symbolic.

`without_sympy` puts this module in the place of torch.fx.experimental.symbolic_shapes. It has the
names that torch's functions import from there. Numbers are answered as torch's answers them; any
other value, and any other name, is left to torch's, which is imported then.
"""

import functools
import importlib
import operator
from collections.abc import Callable
from typing import Any

import torch

# Functions read it that leave its import to symbolic_shapes.
from torch.fx.experimental import _config  # noqa: F401

REAL = "torch.fx.experimental.symbolic_shapes"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(REAL), name)


def _itself(name: str, *kinds: type) -> Callable[..., Any]:
    """A function of torch's; a value of these types it gives back as it is."""

    def answer(a: Any, *rest: Any, **named: Any) -> Any:
        return a if type(a) in kinds else __getattr__(name)(a, *rest, **named)

    return answer


guard_or_false = _itself("guard_or_false", bool)
guard_or_true = _itself("guard_or_true", bool)
statically_known_true = _itself("statically_known_true", bool)
expect_true = _itself("expect_true", bool)
guard_size_oblivious = _itself("guard_size_oblivious")
guard_int = _itself("guard_int", int)
guarding_hint_or_throw = _itself("guarding_hint_or_throw", int, bool)


# Of older releases, as `has_hint`.
size_hint = _itself("size_hint", int)


def is_nested_int(s: Any) -> bool:
    """Whether it is the length of a nested tensor's rows."""
    return isinstance(s, torch.SymInt) and s.node.is_nested_int()


def has_hint(a: Any) -> bool:
    """Whether it is known what number it is."""
    return type(a) in (bool, int, float, complex) or __getattr__("has_hint")(a)


def has_guarding_hint(a: Any) -> bool:
    """The same in newer releases."""
    return type(a) in (bool, int, float, complex) or __getattr__("has_guarding_hint")(a)


def free_unbacked_symbols(x: Any) -> Any:
    """The symbols without a number in the sizes of a tensor."""
    if isinstance(x, torch.Tensor) and x.layout is torch.strided:
        numbers = (*x.shape, *x.stride(), x.storage_offset())
        if all(type(number) is int for number in numbers):
            return set()
    return __getattr__("free_unbacked_symbols")(x)


def sym_and(x: Any, *others: Any) -> Any:
    """Whether all are true; the only one as it is."""
    return functools.reduce(operator.and_, others, x)


def sym_or(x: Any, *others: Any) -> Any:
    """Whether one is true; the only one as it is."""
    return functools.reduce(operator.or_, others, x)


def sym_eq(x: Any, y: Any) -> Any:
    """Whether two sizes, or two shapes, are the same."""
    kinds = (int, torch.SymInt)
    if isinstance(x, kinds) and isinstance(y, kinds):
        return x == y
    if isinstance(x, tuple | list) and isinstance(y, tuple | list):
        # Of different lengths they are not.
        return len(x) == len(y) and functools.reduce(operator.and_, map(sym_eq, x, y), True)
    return __getattr__("sym_eq")(x, y)

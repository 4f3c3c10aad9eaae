"""Guards: what a call depends on, as one generated function of plain comparisons.

Each condition is a piece of Python over the arguments (`a`, `k`) and objects that were given names.
All of them together are one function; by itself each of them tells which one is broken.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from torch_xdist.core.trace.tensor_types import TensorType

# Conditions of one `if`.
_IN_ONE = 40
# What a condition raises whose object is not there any more.
_GONE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
_SHOWN = 80


class Check(NamedTuple):
    """One condition.

    Attributes:
        holds: Python that is true while the condition is kept.
        now: Python for what is there now.
        was: what was there, in words.
        where: in the user's words.
        kind: what the metrics call it.
    """

    holds: str
    now: str
    was: str
    where: str
    kind: str


class Names:
    """Names in generated code for objects, one each."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._of_ids: dict[int, str] = {}

    def of(self, thing: Any) -> str:
        """The name of an object, which is kept alive."""
        name = self._of_ids.get(id(thing))
        if name is None:
            name = self._of_ids[id(thing)] = f"o{len(self.objects)}"
            self.objects[name] = thing
        return name


class Guard:
    """The conditions under which a call is like the one that was recorded.

    Attributes:
        holds: `holds(args, kwargs)`: whether all do.
    """

    def __init__(self, checks: Sequence[Check], names: Names) -> None:
        self.checks = [*dict.fromkeys(checks)]
        self._names = names
        self.holds: Callable[[Any, Any], bool] = compiled(_source(self.checks), names)["guard"]

    def broken(self, args: Any, kwargs: Any) -> tuple[Check, str] | None:
        """The first condition that is not kept, and what is there now in words; None: all are."""
        for check in self.checks:
            space = {**self._names.objects, "a": args, "k": kwargs, **_BUILTINS}
            try:
                if eval(check.holds, space):
                    continue
            except _GONE:
                pass
            try:
                return check, told(eval(check.now, space))
            except _GONE:
                return check, "not there"
        return None


def compiled(source: str, names: Names) -> dict[str, Any]:
    """What a piece of generated code defines."""
    space: dict[str, Any] = {**names.objects, **_BUILTINS}
    exec(compile(source, "<torch_xdist.replay>", "exec"), space)
    return space


_BUILTINS = {"ids": lambda things: [*map(id, things)]}


def _source(checks: Sequence[Check]) -> str:
    lines = ["def guard(a, k):", " try:"]
    for start in range(0, len(checks), _IN_ONE):
        part = " and ".join(f"({check.holds})" for check in checks[start : start + _IN_ONE])
        lines.append(f"  if not ({part}): return False")
    names = ", ".join(error.__name__ for error in _GONE)
    return "\n".join([*lines, f" except ({names}): return False", " return True"])


def equals(expression: str, value: Any) -> str:
    """The condition that an expression is this plain value: also its type, and the sign of zero."""
    if value is None or value.__class__ is bool:
        return f"{expression} is {value!r}"
    kind = f"{expression}.__class__ is {value.__class__.__name__}"
    if value.__class__ is float and (value == 0 or not math.isfinite(value)):
        return f"{kind} and {expression}.hex() == {value.hex()!r}"
    return f"{kind} and {expression} == {value!r}"


def told(value: Any) -> str:
    """A value in a few words."""
    is_short = value.__class__ in PLAIN or isinstance(value, TensorType | torch.dtype)
    text = repr(value) if is_short else f"a {value.__class__.__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


# Types whose values are compared by value; their repr is Python for them.
PLAIN = frozenset((type(None), bool, int, float, str, bytes))

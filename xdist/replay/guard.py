"""Guards: what a call depends on, as one generated function of plain comparisons.

Each condition is a piece of Python over the arguments (`a`, `k`) and objects that were given names;
by itself it tells what is broken. Conditions of the same form, of which a model has hundreds, are
compared together (`Bulk`): their values are collected by functions of C, and two lists compared.
"""

import contextlib
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_xdist.core.trace.tensor_types import TensorType

# Conditions of one `if`.
_IN_ONE = 40
_SHOWN = 80
# Types whose values are compared by value; their repr is Python for them.
PLAIN = frozenset((type(None), bool, int, float, str, bytes))


class Bulk(NamedTuple):
    """What a condition compares, where many others compare the same of other objects.

    Attributes:
        kind: "item", `thing[key] is value`; "plain", `thing[key]` equals the value, type included;
            "attribute", `thing.key is value`; "length", `len(thing) == value`; "empty", `not
            thing`; "members", the keys and the values of a dict are those in `value`;
            "covered", it is one of these.
    """

    kind: str
    thing: Any
    key: Any = None
    value: Any = None


class Check:
    """One condition.

    Attributes:
        holds: Python that is true while the condition is kept.
        now: Python for what is there now.
        was: what was there, in words.
        where: in the user's words.
        kind: what the metrics call it.
        bulk: the same for a comparison together with others; None where it stands alone.
    """

    __slots__ = ("bulk", "holds", "kind", "now", "was", "where")

    def __init__(
        self, holds: str, now: str, was: str, where: str, kind: str, bulk: Bulk | None = None
    ) -> None:
        self.holds = holds
        self.now = now
        self.was = was
        self.where = where
        self.kind = kind
        self.bulk = bulk


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
        self.checks = [*{check.holds: check for check in checks}.values()]
        self._names = names
        bulk = [check.bulk for check in self.checks if check.bulk is not None]
        alone = [check.holds for check in self.checks if check.bulk is None]
        together = [*_together(bulk, names)]
        source = _source(together, alone)
        self.holds: Callable[[Any, Any], bool] = compiled(source, names)["guard"]

    def broken(self, args: Any, kwargs: Any) -> tuple[Check, str] | None:
        """The first condition that is not kept, and what is there now in words; None: all are."""
        for check in self.checks:
            space = {**self._names.objects, "a": args, "k": kwargs, **_FUNCTIONS}
            with contextlib.suppress(Exception):
                if eval(check.holds, space):
                    continue
            now = "not there"
            with contextlib.suppress(Exception):
                now = told(eval(check.now, space))
            return check, now
        return None


def compiled(source: str, names: Names) -> dict[str, Any]:
    """What a piece of generated code defines."""
    space: dict[str, Any] = {**names.objects, **_FUNCTIONS}
    exec(compile(source, "<torch_xdist.replay>", "exec"), space)
    return space


def ids_of(things: Any) -> list[int]:
    """The identity of each."""
    return [*map(id, things)]


_FUNCTIONS: Mapping[str, Any] = {"ids": ids_of, "chained": itertools.chain.from_iterable}


def _source(together: Sequence[str], alone: Sequence[str]) -> str:
    lines = ["def guard(a, k):", " try:"]
    lines += [f"  if not ({condition}): return False" for condition in together]
    for start in range(0, len(alone), _IN_ONE):
        part = " and ".join(f"({condition})" for condition in alone[start : start + _IN_ONE])
        lines.append(f"  if not ({part}): return False")
    # Whatever is raised where something is not there any more, or cannot be compared.
    return "\n".join([*lines, " except Exception: return False", " return True"])


def _together(bulk: Sequence[Bulk], names: Names) -> Iterator[str]:
    """Conditions that stand for all of those that are compared together."""
    of_kind: dict[str, list[Bulk]] = {}
    for one in bulk:
        kind = f"attribute {one.key}" if one.kind == "attribute" else one.kind
        of_kind.setdefault(kind, []).append(one)
    for kind, some in of_kind.items():
        things = names.of([one.thing for one in some])
        values = [one.value for one in some]
        if kind == "covered":
            continue
        if kind == "item":
            getters, found = _getters(some)
            yield f"ids(chained([get(d) for get, d in {names.of(getters)}])) == {names.of(found)}"
        elif kind == "plain":
            pairs = names.of([(one.thing, one.key) for one in some])
            types = names.of([*map(type, values)])
            yield f"(found := [d[n] for d, n in {pairs}]) == {names.of(values)}"
            yield f"[*map(type, found)] == {types}"
        elif kind == "length":
            yield f"[*map(len, {things})] == {names.of(values)}"
        elif kind == "empty":
            yield f"not any({things})"
        elif kind == "members":
            keys = names.of([key for members in values for key in members])
            held = names.of(ids_of(member for members in values for member in members.values()))
            yield f"[*chained({things})] == {keys}"
            yield f"ids(chained([d.values() for d in {things}])) == {held}"
        else:
            get = names.of(operator.attrgetter(some[0].key))
            yield f"ids(map({get}, {things})) == {names.of(ids_of(values))}"


def _getters(some: Sequence[Bulk]) -> tuple[list[tuple[Any, Any]], list[int]]:
    """What takes all of a dict's items at once, with the dict; and the identity of each item."""
    of_dicts: dict[int, list[Bulk]] = {}
    for one in some:
        of_dicts.setdefault(id(one.thing), []).append(one)
    getters, found = [], []
    for items in of_dicts.values():
        # Of one key alone it would be no tuple.
        items = items if len(items) > 1 else items * 2
        getters.append((operator.itemgetter(*[one.key for one in items]), items[0].thing))
        found += [one.value for one in items]
    return getters, ids_of(found)


def equals(expression: str, value: Any) -> str:
    """The condition that an expression is this plain value: also its type, and the sign of zero."""
    if value is None or value.__class__ is bool:
        return f"{expression} is {value!r}"
    kind = f"{expression}.__class__ is {value.__class__.__name__}"
    if is_odd(value):
        return f"{kind} and {expression}.hex() == {value.hex()!r}"
    return f"{kind} and {expression} == {value!r}"


def is_odd(value: Any) -> bool:
    """Whether a number cannot be compared by `==`: zeros have signs, and no number is itself."""
    return value.__class__ is float and (value == 0 or not math.isfinite(value))


def told(value: Any) -> str:
    """A value in a few words."""
    is_short = value.__class__ in PLAIN or isinstance(value, TensorType | torch.dtype)
    text = repr(value) if is_short else f"a {value.__class__.__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."

"""What code names: the globals it loads and the attributes it reads, without running it."""

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from torch_xdist.core.trace.user_frames import is_user_file

_OF_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_OF_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"))


class Names(NamedTuple):
    """The names in a code object and in those inside of it."""

    globals: frozenset[str]
    attributes: frozenset[str]


@functools.lru_cache(maxsize=1024)
def names_of(code: CodeType) -> Names:
    """What a code object names."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for part in _with_inner(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in _OF_GLOBALS:
                found[True].add(instruction.argval)
            elif instruction.opname in _OF_ATTRIBUTES:
                found[False].add(instruction.argval)
    return Names(frozenset(found[True]), frozenset(found[False]))


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def is_users(function: Any) -> bool:
    """Whether a function was written by the user: neither by torch nor here."""
    return isinstance(function, FunctionType) and is_user_file(function.__code__.co_filename)


def functions_of(kind: type, names: frozenset[str] | set[str]) -> list[FunctionType]:
    """The user's functions among the attributes of a class that have one of these names."""
    found = []
    for name in sorted(names):
        owner = next((owner for owner in kind.__mro__ if name in owner.__dict__), None)
        if owner is not None:
            found += [part for part in _parts(owner.__dict__[name]) if is_users(part)]
    return found


def _parts(attribute: Any) -> tuple[Any, ...]:
    """The functions behind an attribute of a class."""
    if isinstance(attribute, staticmethod | classmethod):
        return (attribute.__func__,)
    if isinstance(attribute, property):
        return (attribute.fget, attribute.fset)
    return (getattr(attribute, "__wrapped__", None), attribute)

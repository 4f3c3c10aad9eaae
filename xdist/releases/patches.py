"""The only way to change torch and jax: by a row of `patch_table`.

A part that has to change something of theirs writes the replacement in its own module, and calls
`replace`, `wrap` or `extend` with the row's target. `probes` looks at the targets before the first
change, and `python -m torch_xdist.doctor` prints them.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

from torch_xdist.releases.patch_table import PATCHES

_ROWS = {patch.target: patch for patch in PATCHES}
# Targets, with the objects that have them: a module that is imported again has to be changed again.
_made: list[tuple[str, Any]] = []
# Of those that can be undone, with what was there.
_marked: list[tuple[str, Any, Any]] = []


def replace(target: str, value: Any) -> None:
    """Put `value` where `target` is. A second call for a target changes nothing."""
    wrap(target, lambda usual: value)


def wrap(target: str, wrapper: Callable[[Any], Any]) -> None:
    """Put `wrapper(what is there)` where `target` is. A second call changes nothing."""
    for owner, name in _begin(target):
        usual = None if _ROWS[target].is_new else getattr(owner, name)
        setattr(owner, name, wrapper(usual))


def extend(target: str, items: Iterable[Any]) -> None:
    """Add items to the list, set or dict that is `target`. A second call changes nothing."""
    for owner, name in _begin(target):
        known = getattr(owner, name)
        known.extend(items) if isinstance(known, list) else known.update(items)


def mark(target: str, values: Iterable[tuple[Any, Any]]) -> None:
    """Set what `target` ends with on these objects, which no path names; each with its value."""
    name = target.rpartition(".")[2]
    for owner, value in values:
        _marked.append((target, owner, getattr(owner, name, None)))
        _made.append((target, owner))
        setattr(owner, name, value)


def undo(target: str) -> None:
    """Set what was marked to what it was; None where it was not there."""
    name = target.rpartition(".")[2]
    for marked in [found for found in _marked if found[0] == target]:
        _marked.remove(marked)
        setattr(marked[1], name, marked[2])


def renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """The code, and that of functions inside it, with other modules and attributes of these names.

    Local variables keep theirs. The same object where none of the names is in it.
    """
    inner = {id(c): renamed(c, names) for c in code.co_consts if isinstance(c, CodeType)}
    if names.keys().isdisjoint(code.co_names) and all(id(c) in inner for c in inner.values()):
        return code
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(inner.get(id(c), c) for c in code.co_consts),
    )


def is_needed(target: str) -> bool:
    """Whether this torch needs the change."""
    return _ROWS[target].is_needed


def is_made(target: str) -> bool:
    """Whether the change was made in this process."""
    return any(target == made for made, _ in _made)


def _begin(target: str) -> list[tuple[Any, str]]:
    """Where to make a change that was not made yet; nothing where torch may lack the target."""
    patch = _ROWS[target]
    if not patch.is_needed or (patch.absent and not has(target)):
        return []
    done = [owner for made, owner in _made if made == target]
    found = [place for place in places(target) if not any(place[0] is owner for owner in done)]
    _made.extend((target, owner) for owner, _ in found)
    return found


def has(target: str) -> bool:
    """Whether this torch has what is to be changed."""
    try:
        found = list(places(target))
    except AttributeError:
        return False
    return bool(found) and all(hasattr(owner, name) for owner, name in found)


def places(target: str) -> Iterator[tuple[Any, str]]:
    """The objects that have the target, and its name there.

    Raises:
        AttributeError: an object on the path is missing.
    """
    path, _, name = target.rpartition(".")
    if target in _ROWS and _ROWS[target].is_marked:
        yield from ((owner, name) for made, owner in _made if made == target)
        return
    if path.endswith(".*"):
        for module in [m for n, m in list(sys.modules.items()) if n.startswith(path[:-1])]:
            if hasattr(module, name):
                yield module, name
        return
    owner = object_at(path)
    # Code belongs to the innermost function.
    yield (inspect.unwrap(owner) if name == "__code__" else owner), name


def object_at(path: str) -> Any:
    """The object with a dotted path, in modules that are loaded.

    A function may hide the module it was imported from: modules come first.

    Raises:
        AttributeError: there is none.
    """
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        found = sys.modules.get(".".join(parts[:end]))
        if found is not None:
            for part in parts[end:]:
                found = getattr(found, part)
            return found
    raise AttributeError(f"no module {parts[0]!r} is loaded")

"""Name by name: what torch_xla has, beside what is here."""

import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch_xdist.surface import signatures
from torch_xdist.torch_xla_compat.not_here import NOT_HERE

THERE, DIFFERS, ABSENT = "there", "differs", "absent"
# name -> a signature, "= value", or "object"; of a class: {method: signature or kind}
Names = Mapping[str, Any]
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Row:
    """One name of torch_xla. `how` says what differs, or why it is absent."""

    module: str
    name: str
    status: str
    how: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def names() -> dict[str, Names]:
    """Every public name of torch_xla 2.9.0, by module."""
    return json.loads((Path(__file__).parent / "names.json").read_text())


def compare(expected: Mapping[str, Names]) -> Iterator[Row]:
    """Each name of each module, in order."""
    for module, wanted in expected.items():
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            yield from (Row(module, name, ABSENT, str(error)) for name in wanted)
            continue
        for name, kind in wanted.items():
            yield _row(module, name, kind, getattr(found, name, _MISSING))


def exceptions() -> Iterator[Row]:
    """What is left out on purpose, with the reason; beside what `names` lists."""
    for module, why in NOT_HERE.items():
        yield Row(module, "*", ABSENT, why)


def _row(module: str, name: str, kind: Any, found: Any) -> Row:
    if found is _MISSING:
        return Row(module, name, ABSENT, f"{module} has no {name}")
    how = _of_class(kind, found) if isinstance(kind, dict) else _of_name(kind, found)
    return Row(module, name, DIFFERS if how else THERE, "; ".join(how))


def _of_name(kind: str, found: Any) -> list[str]:
    if kind.startswith("= "):
        return [] if repr(found) == kind[2:] else [f"is {found!r}, not {kind[2:]}"]
    if not kind.startswith("("):
        return []
    if not callable(found):
        return ["is not callable"]
    ours = signatures.of(found)
    return signatures.differences(signatures.parse(kind), ours) if ours else []


def _of_class(methods: Names, found: Any) -> list[str]:
    if not inspect.isclass(found):
        return [f"is a {type(found).__name__}, not a class"]
    how = []
    for name, kind in methods.items():
        method = inspect.getattr_static(found, name, _MISSING)
        if method is _MISSING:
            # What an instance only has is told by an annotation or a slot.
            how += [] if name in inspect.get_annotations(found) else [f"has no {name}"]
        elif kind.startswith("("):
            told = _of_name(kind, getattr(method, "__func__", method))
            how += [f"{name}: {difference}" for difference in told]
    return how

"""Every function and class of torch_xla's surface is named by a test of what it does.

What counts is the object: a test may name it by any of its paths, as an attribute or by an import.
"""

import ast
import functools
import importlib
import inspect
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from torch_xdist.surface.compare import names

TESTS = Path(__file__).resolve().parents[2]
# They look at names and signatures alone.
TABLES = {"test_surface.py", "test_face.py", "test_every_name_is_tested.py"}
OURS = ("torch_xla", "torch_xdist", "torch_xla_py")
# name: why no test calls it by itself.
EXCUSED: dict[str, str] = {}


def named_in(tree: ast.AST) -> Iterator[str]:
    """The dotted paths, below our packages, that a program says."""
    whole = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                root = one.name.partition(".")[0]
                whole[one.asname or root] = one.name if one.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in ast.walk(tree):
        # NAME = torch_xla.something
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            said = dotted(node.value, whole) if isinstance(node.value, ast.Attribute) else None
            if said and node.targets[0].id not in whole:
                whole[node.targets[0].id] = said
    found = (dotted(node, whole) for node in ast.walk(tree))
    yield from (path for path in found if path and path.partition(".")[0] in OURS)


def dotted(node: ast.AST, whole: Mapping[str, str]) -> str | None:
    """`a.b.c` with the path of what `a` was imported as; None for another expression."""
    below: list[str] = []
    while isinstance(node, ast.Attribute):
        below.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in whole:
        return None
    return ".".join([whole[node.id], *reversed(below)])


def programs(file: Path) -> Iterator[ast.AST]:
    """A test file, and the programs that stand in it as text."""
    tree = ast.parse(file.read_text())
    yield tree
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and "import" in text and "torch_x" in text:
            try:
                yield ast.parse(textwrap.dedent(text))
            except SyntaxError:
                continue


@functools.cache
def found_at(path: str) -> Any:
    """The object at a dotted path; None where there is none."""
    owner, _, name = path.rpartition(".")
    if not owner:
        return importlib.import_module(path)
    holder = found_at(owner)
    if inspect.ismodule(holder) and not hasattr(holder, name):
        try:
            return importlib.import_module(path)
        except ImportError:
            return None
    return getattr(holder, name, None)


def is_called(kind: Any) -> bool:
    """Whether the list has a function or a class; constants and names of types are compared."""
    return isinstance(kind, dict) or kind in ("call", "class") or kind.startswith("(")


def test_every_function_and_class_is_named_by_a_test():
    files = [file for file in TESTS.rglob("*.py") if file.name not in TABLES]
    paths = {path for file in files for tree in programs(file) for path in named_in(tree)}
    with warnings.catch_warnings():
        # What a deprecated name says of itself is tested where it is.
        warnings.simplefilter("ignore")
        tested = {id(found_at(path)) for path in paths}
        called = [f"{m}.{n}" for m, kinds in names().items() for n in kinds if is_called(kinds[n])]
        missing = {name for name in called if id(found_at(name)) not in tested}
    assert missing == EXCUSED.keys(), sorted(missing ^ EXCUSED.keys())


@pytest.mark.parametrize(
    ("program", "paths"),
    [
        ("import torch_xla.runtime as xr; xr.world_size()", {"torch_xla.runtime.world_size"}),
        ("from torch_xla import runtime\nruntime.x", {"torch_xla.runtime", "torch_xla.runtime.x"}),
        ("import torch_xla\nX = torch_xla._XLAC\nX.y", {"torch_xla._XLAC.y"}),
        ("import torch; torch.ones(2); world_size()", set()),
    ],
)
def test_names_are_read_from_programs(program, paths):
    found = set(named_in(ast.parse(program)))
    assert paths <= found and (paths or not found)

"""Which code a host would run: a script, what it imports from beside it, and their hashes.

Nothing is imported: the imports are read from the source. What is installed as a package is not
looked at; its version is compared instead.
"""

import ast
import hashlib
import importlib.machinery
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Of one job; more is left unread, and the answer says so.
_MOST_FILES = 300
_MOST_BYTES = 20 << 20


def of(kind: str, name: str, cwd: str) -> dict[str, Any]:
    """The files of a command, as this host has them.

    Args:
        kind, name: "script" and its absolute path, "module" and its name, or "program" and its
            word, as `ways_in/command_line.py` reads them.

    Returns:
        `path` of what is run, `files` (path from its folder: hash), `whole`: whether these are all;
        or `why_not`: why it cannot be run here.
    """
    if kind == "program":
        found = shutil.which(name, path=os.pathsep.join([os.defpath, *os.get_exec_path()]))
        if not found and not Path(cwd, name).exists():
            return {"why_not": f"{name!r} is no program on PATH there"}
        return {"path": found or str(Path(cwd, name)), "files": {}, "whole": True}
    main = Path(name) if kind == "script" else _module(name, cwd)
    if main is None:
        return {"why_not": f"no module {name!r} is there"}
    if not main.is_file():
        return {"why_not": f"{main} does not exist there"}
    root = main.resolve().parent if kind == "script" else _root(main, name)
    files, whole = _hashes(main.resolve(), root)
    return {"path": str(main), "files": files, "whole": whole}


def _module(name: str, cwd: str) -> Path | None:
    """The file that `python -m NAME` runs."""
    first, *rest = name.split(".")
    spec = importlib.machinery.PathFinder.find_spec(first, [cwd, *sys.path])
    if spec is None or not spec.origin:
        return None
    if not rest and not spec.submodule_search_locations:
        return Path(spec.origin)
    for folder in spec.submodule_search_locations or ():
        whole = Path(folder, *rest)
        for path in (whole.with_suffix(".py") if rest else whole, whole / "__main__.py"):
            if path.is_file():
                return path
    return None


def _root(main: Path, name: str) -> Path:
    """The folder in which the name of a module begins."""
    first = name.split(".")[0]
    return next((up.parent for up in main.resolve().parents if up.name == first), main.parent)


def _hashes(main: Path, root: Path) -> tuple[dict[str, str], bool]:
    """The hash of `main` and of all that it imports from below `root`; whether that is all."""
    found: dict[str, str] = {}
    waiting, seen, read_bytes = [main], {main}, 0
    while waiting:
        path = waiting.pop(0)
        if len(found) >= _MOST_FILES or read_bytes > _MOST_BYTES:
            return found, False
        try:
            source = path.read_bytes()
        except OSError:
            continue
        read_bytes += len(source)
        inside = path.relative_to(root) if path.is_relative_to(root) else path
        found[str(inside)] = hashlib.sha256(source).hexdigest()[:12]
        new = [other for other in _imported(source, path, root) if other not in seen]
        seen.update(new)
        waiting += dict.fromkeys(new)
    return found, True


def _imported(source: bytes, path: Path, root: Path) -> Iterator[Path]:
    """The files below `root` that this source may import."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(root, alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if node.level else root
            for alias in node.names:
                yield from _files(start, ".".join(filter(None, (node.module, alias.name))))


def _files(start: Path, name: str) -> Iterator[Path]:
    """The packages and the module on the way to a dotted name."""
    at = start
    for word in name.split("."):
        at = at / word
        for path in (at / "__init__.py", at.with_suffix(".py")):
            if path.is_file():
                yield path

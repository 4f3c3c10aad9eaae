"""What a command line means: a Python script or module, run in a warm fork, or any program."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_xdist.launcher.facts.errors import UsageError


@dataclass(frozen=True, slots=True)
class Command:
    """kind: "script" (argv[0] its absolute path), "module" (argv[0] its name) or "program".

    `first_on_path` is what Python would put in front of sys.path.
    """

    kind: str
    argv: tuple[str, ...]
    first_on_path: str = ""


def read(words: Sequence[str], cwd: str, *, is_module: bool = False) -> Command:
    """Understand a command line; with `is_module` its first word is that of `python -m`.

    A script or module of this very interpreter is run in a fork that has imported torch and jax
    already. With options of the interpreter other than -u, or another interpreter, it is a program.

    Raises:
        UsageError: there is no command, or its script or program does not exist.
    """
    if not words:
        raise UsageError("xla-run: no command; write it after the options: python train.py")
    rest = list(words)
    if is_module:
        return Command("module", tuple(rest), cwd)
    if _is_this_python(rest[0]):
        rest = [word for index, word in enumerate(rest[1:]) if word != "-u" or index > 0]
        if len(rest) >= 2 and rest[0] == "-m":
            return Command("module", tuple(rest[1:]), cwd)
        if rest and not rest[0].startswith("-"):
            return _script(rest, cwd)
    elif rest[0].endswith(".py") and not os.access(Path(cwd, rest[0]), os.X_OK):
        return _script(rest, cwd)
    if shutil.which(words[0]) is None:
        raise UsageError(f"xla-run: {words[0]!r} is no program on PATH; check its name")
    return Command("program", tuple(words))


def _script(words: Sequence[str], cwd: str) -> Command:
    path = Path(cwd, words[0])
    if not path.exists():
        raise UsageError(f"xla-run: script {words[0]!r} does not exist in {cwd}")
    if path.is_dir():
        path = path / "__main__.py"
        if not path.exists():
            raise UsageError(f"xla-run: {words[0]!r} is a directory without a __main__.py")
    return Command("script", (str(path.absolute()), *words[1:]), str(path.resolve().parent))


def _is_this_python(word: str) -> bool:
    """Whether a command word starts the interpreter that runs us, of the same environment."""
    found = shutil.which(word)
    if found is None or not os.path.basename(found).startswith("python"):
        return False
    same_file = os.path.realpath(found) == os.path.realpath(sys.executable)
    same_home = os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable)
    return same_file and same_home

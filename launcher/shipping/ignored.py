"""What of a folder is not shipped: what git ignores, and what no other machine can use.

Git itself is asked, so every rule of its own holds (a .gitignore in any folder, the user's own
excludes, tracked files that match a rule). A folder that is in no work tree is asked about through
an empty repository, which is gone again.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from torch_xdist.launcher.facts.errors import PreflightError
from torch_xdist.launcher.facts.settings import environment

_LIMIT_S = 60.0
_NAMES = frozenset(
    (
        *(".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints", ".DS_Store"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"),
    )
)
_LIST = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")


def is_never_shipped(folder: Path, name: str) -> bool:
    """Whether an entry of a folder is a cache, the data of a version control, or an environment."""
    return name in _NAMES or name.endswith(".pyc") or (folder / name / "pyvenv.cfg").is_file()


class Ignored:
    """What git ignores in one folder and below.

    Args:
        is_root: whether all of it is asked for; else only whether it is a repository in another.

    Raises:
        PreflightError: git is not installed, and there are rules; or git cannot say it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: frozenset[bytes] = frozenset()
        if not _has_git():
            if any((up / ".git").exists() for up in (folder, *folder.parents)):
                raise _without_git(folder / ".git")
            self.knows_rules = False
            return
        self.knows_rules = True
        inside = _git(folder, "rev-parse", "--is-inside-work-tree")
        if b"dubious ownership" in inside.stderr:
            # Git takes no rules from a repository of another user, and guessing them would ship
            # what they leave out.
            _said(inside, folder)
        if inside.returncode == 0 and inside.stdout.strip() == b"true":
            found = _listed(folder)
            if b"./" not in found:
                self._paths = found
                return
        # What stands in an ignored folder is shipped when that folder itself is asked for.
        with tempfile.TemporaryDirectory(prefix="xla-run-git-") as empty:
            _said(_git(folder, "init", "--quiet", "--bare", empty), folder)
            self._paths = _listed(folder, f"--git-dir={empty}", "--work-tree=.")

    def has(self, folder: Path, name: str, *, is_folder: bool) -> bool:
        """Whether git ignores an entry of this folder or one below.

        Raises:
            PreflightError: it is a list of rules, and git is not installed.
        """
        if not self.knows_rules and name == ".gitignore":
            raise _without_git(folder / name)
        path = os.fsencode((folder / name).relative_to(self._folder))
        return (path + b"/" if is_folder else path) in self._paths


def _has_git() -> bool:
    try:
        subprocess.run(["git", "--version"], capture_output=True, check=False, timeout=_LIMIT_S)
    except OSError:
        return False
    return True


def _without_git(path: Path) -> PreflightError:
    return PreflightError(
        f"--ship: git is not installed here, and only git can say what {path} leaves out; "
        "install git, or ship a folder without it"
    )


def _git(folder: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Whatever repository the caller's environment names, the folder says which one counts."""
    env = {name: value for name, value in environment().items() if not name.startswith("GIT_")}
    env["LC_ALL"] = "C"
    command = ["git", "-C", str(folder), *words]
    try:
        return subprocess.run(command, env=env, capture_output=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise PreflightError(
            f"--ship {folder}: git did not say in {_LIMIT_S:g} s what is ignored there; look at "
            f"`git -C {folder} status`"
        ) from None


def _listed(folder: Path, *where: str) -> frozenset[bytes]:
    return frozenset(_said(_git(folder, *where, *_LIST), folder).split(b"\0"))


def _said(done: "subprocess.CompletedProcess[bytes]", folder: Path) -> bytes:
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip() or f"code {done.returncode}"
        raise PreflightError(f"--ship {folder}: git cannot say what is ignored there: {why}")
    return done.stdout

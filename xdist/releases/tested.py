"""The releases that `scripts/matrix` runs the tests on. Imports neither torch nor jax.

docs/versions.md has the results; the bounds in pyproject.toml are the oldest and newest of these.
"""

import importlib.metadata
import platform
from typing import NamedTuple


class Cell(NamedTuple):
    """One set of releases that belong together."""

    name: str
    python: str  # 3.11
    torch: str
    jax: str


CELLS = (
    Cell("oldest", "3.11", "2.9.1", "0.10.0"),
    Cell("pinned", "3.11", "2.13.0", "0.10.2"),
    Cell("middle", "3.12", "2.11.0", "0.11.2"),
    Cell("newest", "3.13", "2.15.0", "0.12.0.1"),
)
DISTRIBUTIONS = ("torch-xdist", "torch", "jax", "jaxlib", "numpy")


def installed() -> dict[str, str]:
    """Python and `DISTRIBUTIONS`, each with its release; "not installed" where there is none."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def cell_of(found: dict[str, str]) -> Cell | None:
    """The cell with these releases, whatever the build (2.13.0+cpu) and the patch of Python."""
    python = ".".join(found["python"].split(".")[:2])
    torch, jax = (found[name].partition("+")[0] for name in ("torch", "jax"))
    return next((cell for cell in CELLS if cell[1:] == (python, torch, jax)), None)

"""What asks whether a release has one hook. It only looks, at `import` or at another moment."""

from collections.abc import Callable
from typing import NamedTuple

# When what a script may never use is missed: `require` does not ask for it, the doctor does.
USE = "its first use"


class Probe(NamedTuple):
    """One hook: where it is looked for, and what it is needed for."""

    path: str
    needed_for: str
    otherwise: str = ""  # what is done where it is missing; empty: nothing can be
    check: Callable[[], bool] | None = None  # more than that it is there
    when: str = "import"


def each(
    owner: str, names: str, needed_for: str, otherwise: str = "", when: str = "import"
) -> list[Probe]:
    """A probe for each of several names in one place."""
    return [Probe(f"{owner}.{name}", needed_for, otherwise, when=when) for name in names.split()]

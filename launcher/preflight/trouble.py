"""One thing that is wrong with a host, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch_xdist.launcher.facts.errors import ExitCode

_MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Trouble:
    """`column` of the table is marked for it, "" for none; without a `host` it is that of all."""

    host: str
    column: str
    text: str
    is_warning: bool = False
    exit_code: int = ExitCode.PREFLIGHT


def others_text(names: Sequence[str]) -> str:
    """ "host a", "hosts a, b", "hosts a, b, c, d and 12 others"."""
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    rest = f" and {more} other{'s' * (more > 1)}" if more > 0 else ""
    return f"host{'s' * (len(names) > 1)} {shown}{rest}"

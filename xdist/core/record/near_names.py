"""Names near a name, for error messages."""

import difflib

from torch_xdist.ops.table import LOWERINGS


def nearest(name: str, count: int = 3) -> list[str]:
    """The overloads with rows whose names are most like `name`."""
    return difflib.get_close_matches(name, LOWERINGS, count, cutoff=0.3)

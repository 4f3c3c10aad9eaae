"""Names inside a lowering, for what torch_xla makes several operators of and we one row.

They are asked for where a program shall tell XLA what its operations are (XLA_HLO_DEBUG), so that
profiles and HLO have the names that torch_xla's users look for. Otherwise a lowering is as short as
it can be.
"""

import contextlib
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax

_NAMED = re.compile(r"<as (\w+)>")
_thread = threading.local()


def is_asked() -> bool:
    """Whether the row that is being lowered shall name its parts."""
    return getattr(_thread, "is_asked", False)


@contextlib.contextmanager
def asked() -> Iterator[None]:
    """Rows that are lowered inside the block name their parts."""
    _thread.is_asked = True
    try:
        yield
    finally:
        _thread.is_asked = False


def part(name: str) -> AbstractContextManager[Any]:
    """The operations made inside the block are those of the operator `aten::name`."""
    return jax.named_scope(f"<as aten__{name}>")


def part_of(name: str) -> str | None:
    """The operator that a name of JAX's tells to be the part of a row, as aten__name."""
    found = _NAMED.search(name)
    return found[1] if found else None

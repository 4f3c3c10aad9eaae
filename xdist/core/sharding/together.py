"""What all processes of a job do together in SPMD mode: each says it before XLA matches them up.

XLA's collectives meet by their order alone. A process that does something else, or nothing, would
let the others wait for ever; here it is named instead.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from torch_xdist import platforms, world
from torch_xdist.collectives.mesh import transport as mesh
from torch_xdist.collectives.mesh.agreement import Call
from torch_xdist.progress import PROGRESS


@contextlib.contextmanager
def meeting(calls: Sequence[Call], *, is_new: bool) -> Iterator[Any]:
    """Around what the others do as well; what it yields is given its `result` to wait for.

    Args:
        calls: what it is, the same on every process, and the user's file:line.
        is_new: whether it was never done before; then they wait for one another.

    Raises MismatchError and RankLostError, as programs with collectives do.
    """
    agreement, launches = mesh.joined()
    with launches.next(PROGRESS.where) as launch:
        # On the CPU, who is here sooner waits outside gloo, which gives up on a late process.
        waits = is_new or platforms.of(jax.default_backend()).waits_outside
        agreement.launch(launch, calls, waits=waits)
        yield launch


def alone_or_together(what: str) -> contextlib.AbstractContextManager[Any]:
    """`meeting` for something done once, by its name; nothing where there is one process."""
    if not world.shares_device():
        return contextlib.nullcontext()
    return meeting([(what, PROGRESS.where)], is_new=True)

"""The record of cuts: why each pending tape ran, and where in the user's code.

Every cut has a named reason and the user's file:line; the last thousand are in `LOG`, the counts in
`REASONS` and, as `Cut.REASON`, in the metrics. `device_trace.py` is the only place that cuts.
"""

import threading
from collections import Counter, deque
from typing import NamedTuple

from torch_xdist import metrics
from torch_xdist.core.trace.trace import Tape
from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.progress import PROGRESS

# The reason of the cut that ends a step, of one that a value was read by in Python, ...
SYNC, READ, FALLBACK, LIMIT = "sync", "read", "fallback", "limit"
# The next round of a loop began that ends no step.
LOOP = "loop"
# The first batch came, and what a script made before it is none of a step's.
BEGIN = "begin"
# Eager mode: after every operator.
EAGER = "eager"
# Another thread needed a value of this one's.
OTHER_THREAD = "other thread"


class Cut(NamedTuple):
    """One cut: why, where in the user's code, how many rows ran, and whether XLA compiled."""

    reason: str
    where: str
    rows: int
    compiled: bool
    fingerprint: str


class Rounds:
    """What a trace remembers of a loop that may end no step (see `loop_cuts`).

    Attributes:
        has_begun: whether a batch came after the last model.
        seen: what may begin a round, since the last step: the epoch and the length of the tape, and
            how often it came since then.
        stepped: the epoch and the length at the last step of an optimizer.
        has_turned: whether a round has begun again.
        places: what has put a batch on the device; whether it did so in the first round.
        looked: the same at the last upload, and its place.
        patience: from how many slots on the modules that end are looked at.
        vain: how many tapes have had as many and were no loop's.
        differentiates: whether modules are looked at as a loop asks for gradients.
    """

    __slots__ = (
        "differentiates",
        "has_begun",
        "has_turned",
        "looked",
        "patience",
        "places",
        "seen",
        "stepped",
        "vain",
    )

    def __init__(self) -> None:
        self.has_begun = False
        self.seen: dict[object, tuple[int, int, int]] = {}
        self.stepped = 0, 0
        self.has_turned = False
        self.places: dict[object, bool] = {}
        self.looked = 0, 0, 0, 0
        self.patience, self.vain = 512, 0
        self.differentiates = False

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer was used."""
        return self.stepped != (0, 0)

    def go_on(self, epoch: int, other: int) -> None:
        """A tape was emptied and another is in its stead, though nothing ran: no round is over."""
        for key, (last, _, times) in self.seen.items():
            if last == epoch:
                self.seen[key] = other, 0, times
        if self.stepped[0] == epoch:
            self.stepped = other, 0


LOG: deque[Cut] = deque(maxlen=1000)
REASONS: Counter[str] = Counter()
_lock = threading.Lock()


def note(reason: str, rows: int, compiled: bool, fingerprint: str) -> Cut:
    """Enter a cut that is about to run."""
    cut = Cut(reason, user_line(), rows, compiled, fingerprint)
    with _lock:
        REASONS[reason] += 1
    metrics.count(f"Cut.{reason}")
    LOG.append(cut)
    PROGRESS.where = cut.where
    return cut


def note_collectives(tape: Tape, fingerprint: str) -> None:
    """Tell the launcher which collectives are about to run."""
    if tape.collectives:
        note_launch(len(tape.collectives), fingerprint, last_collective(tape))


def note_launch(count: int, fingerprint: str, name: str) -> None:
    """Tell the launcher that so many collectives are about to run, of which the last has a name."""
    PROGRESS.collective += count
    PROGRESS.fingerprint = fingerprint
    PROGRESS.name = name


def last_collective(tape: Tape) -> str:
    """The name of a tape's last collective; "" where it has none."""
    if not tape.collectives:
        return ""
    last = tape.entries[max(tape.collectives)]
    return last[0].name.removeprefix("xla.")  # type: ignore[index,no-any-return,union-attr]

"""What one pass over a loader shares with the loader it belongs to."""

import logging

from torch_xdist.loaders.pace import Pace
from torch_xdist.loaders.position import Position, Start
from torch_xdist.loaders.wait import BOUND, InputWait

log = logging.getLogger(__name__)

REPORTED_S = 5.0  # shorter passes are mostly start-up


class Pass:
    """What one pass shares with the loader it belongs to."""

    def __init__(
        self,
        pace: Pace | None = None,
        adapts: bool = False,
        position: Position | None = None,
        start: Start | None = None,
        wait: InputWait | None = None,
    ) -> None:
        self.pace = pace or Pace()
        self.adapts = adapts
        self.position = position or Position()
        self.start = start
        self.wait = wait or InputWait()

    def end(self) -> None:
        """The loop is through: say so if it mostly waited for the loader."""
        self.position.finished = True
        if self.wait.elapsed_s > REPORTED_S and self.wait.share >= BOUND:
            log.warning(self.wait.verdict())

"""What tests of loops that end no step begin with, and what they look at."""

import torch_xla
from torch_xdist.core.run import cuts, loop_cuts
from torch_xdist.core.run.device_trace import HERE


def fresh(monkeypatch):
    """Around a test: nothing is pending or remembered, before it and after it."""
    # Other tests of this process may have compiled.
    monkeypatch.setattr(loop_cuts, "_is_compiling", lambda: False)
    torch_xla.sync()
    cuts.LOG.clear()
    yield
    loop_cuts._stop_watching()
    torch_xla.sync()
    HERE.trace.rounds = cuts.Rounds()
    HERE.trace.limit = HERE.trace.rounds.patience


def rounds():
    """The rows of each round that was cut as one, since the test began."""
    return [cut.rows for cut in cuts.LOG if cut.reason == cuts.LOOP]


def reasons():
    """Why each program ran, since the test began."""
    return [cut.reason for cut in cuts.LOG]

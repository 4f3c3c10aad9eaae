"""The head of an attempt that was told to stop before its ranks were started."""

import signal
from pathlib import Path

from torch_xdist.launcher.backends.local import ThisHost
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.head.head import Head
from torch_xdist.launcher.head.requests import Requests


def test_no_rank_is_started_where_the_job_was_stopped_before_its_coordinator_was_up() -> None:
    requests, events = Requests(), []
    head = Head(
        Job("program", ["true"], 2),
        0,
        b"",
        lambda event, **facts: events.append(event),
        requests,
        ThisHost({}),
        mark="XLA_RUN_MARK=x",
        log_dir=Path("/nowhere"),
    )
    requests.ask(signal.SIGTERM)
    # Both are here at once: the head looks at what was asked, then at what it was told.
    head._take(0, {"op": "asked"}, b"")
    head._on_start(None, {"op": "coordinator", "address": "127.0.0.1:1"}, b"")
    assert head._ending.exit_code == 143
    assert "start" not in events

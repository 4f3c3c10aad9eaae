"""The process between `spawn` and the agents: runs the job, so that the caller starts no thread.

It has one socket to the caller as its stdin: the job comes in, events, results and the end go out.
When the socket ends, the caller is gone, and so is the job.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO, cast

from torch_xdist.launcher.errors import LauncherError
from torch_xdist.launcher.frames import Link
from torch_xdist.launcher.local import LocalAgent


class _Wire:
    """A text stream whose other end is the caller of `spawn`."""

    encoding = "utf-8"

    def __init__(self, link: Link) -> None:
        self._link = link

    def write(self, text: str) -> int:
        self._link.send({"op": "log", "text": text})
        return len(text)

    def flush(self) -> None:
        pass


def main() -> None:
    """`python -m torch_xdist.launcher.conductor JOB_ID warm|cold [AGENT_PID ITS_STDIN]`."""
    job_id, warmth, *forked = sys.argv[1:]
    # Before anything else: what the ranks import takes longest.
    agent = LocalAgent.forked(*map(int, forked)) if forked else LocalAgent(job_id, warmth, {})
    from torch_xdist.launcher.job import Job
    from torch_xdist.launcher.pump import Terminal
    from torch_xdist.launcher.runner import Requests, run_job

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = Link(socket.socket(fileno=os.dup(0)))
    received = link.receive()
    if received is None:
        agent.end()
        return
    job, payload = Job.from_json(received[0]["job"]), received[1]
    requests = Requests()
    signal.signal(signal.SIGTERM, lambda *_: requests.ask(signal.SIGTERM))
    threading.Thread(target=_listen, args=(link, requests.ask), daemon=True).start()

    # A caller that does not read must never stop the job: lines wait in a thread of their own.
    terminal = Terminal(cast(TextIO, _Wire(link)), prefix=job.nprocs > 1)

    def show(event: str, **facts: Any) -> None:
        if event == "log":
            terminal.show(facts["rank"], facts["lines"])
        elif event in ("start", "note"):
            link.send({"op": event, "text": facts["text"]})
        elif event == "arrived":
            link.send({"op": event, "pids": facts["pids"]})

    try:
        ending = run_job(job, payload, show, requests, agent)
    except LauncherError as error:
        link.send({"op": "refused", "type": type(error).__name__, "text": str(error)})
        return
    terminal.close()
    for rank, blob in sorted(ending.results.items()):
        if ending.exit_code == 0:
            link.send({"op": "result", "rank": rank}, blob)
    link.send(
        {
            "op": "end",
            "exit_code": ending.exit_code,
            "text": ending.text,
            "warnings": list(ending.warnings),
            "rank": ending.failures[0].rank if ending.failures else None,
            "kind": ending.failures[0].kind if ending.failures else "",
        },
        ending.exception,
    )


def _listen(link: Link, ask: Callable[..., None]) -> None:
    """The caller's requests; the end of its socket is the end of the job, without any grace."""
    while True:
        try:
            received = link.receive()
        except OSError:
            received = None
        if received is None:
            ask(signal.SIGTERM, now=True)
            return
        ask(int(received[0]["signal"]), now=bool(received[0].get("now")))


if __name__ == "__main__":
    main()

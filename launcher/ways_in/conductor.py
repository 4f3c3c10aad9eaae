"""The process between `spawn` and the agents: runs the job, so that the caller starts no thread.

It has one socket to the caller as its stdin: the job comes in, events, results and the end go out.
When the socket ends, or the caller's process does (a fork of it may keep the socket), so does the
job.
"""

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch_xdist.launcher.head.hosts import AgentHere, ThisHost
from torch_xdist.system.errors import ProcessError
from torch_xdist.system.frames import Link, Message
from torch_xdist.system.process import Child, Process


def main() -> None:
    """`python -m ...ways_in.conductor JOB_ID warm|cold MARK [AGENT_PID SOCKET]`."""
    job_id, warmth, mark, *forked = sys.argv[1:]
    # Before anything else: what the ranks import takes longest.
    if forked:
        agent = AgentHere(Child(int(forked[0])), socket.socket(fileno=int(forked[1])), mark)
    else:
        agent = ThisHost({}).start(0, job_id, warmth, mark)
    from torch_xdist.launcher.facts.errors import LauncherError
    from torch_xdist.launcher.facts.job import Job
    from torch_xdist.launcher.head.requests import Requests
    from torch_xdist.launcher.head.runner import FirstAgent, run_job

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = Link(socket.socket(fileno=os.dup(0)))
    received = link.receive()
    if received is None:
        agent.end()
        return
    job = Job.from_json(received.message["job"])
    requests = Requests()
    signal.signal(signal.SIGTERM, lambda *_: requests.ask(signal.SIGTERM))
    threading.Thread(target=_listen, args=(link, requests.ask), daemon=True).start()
    teller = _Teller(link, prefix=job.nprocs > 1)
    stdin = received.descriptors[0] if received.descriptors else None
    try:
        first = FirstAgent(agent, mark)
        ending = run_job(job, received.blob, teller.show, requests, first, stdin)
    except LauncherError as error:
        teller.tell({"op": "refused", "type": type(error).__name__, "text": str(error)})
        teller.close()
        return
    if ending.exit_code == 0:
        for rank, blob in sorted(ending.results.items()):
            teller.tell({"op": "result", "rank": rank}, blob)
    end = {
        "op": "end",
        "exit_code": ending.exit_code,
        "text": ending.text,
        "warnings": list(ending.warnings),
        "rank": ending.failures[0].rank if ending.failures else None,
        "kind": ending.failures[0].kind if ending.failures else "",
    }
    teller.tell(end, ending.exception)
    teller.close()


class _Teller:
    """Tells the caller, on a thread: a caller that does not read stops no job."""

    def __init__(self, link: Link, prefix: bool) -> None:
        from torch_xdist.launcher.ways_in.screen import BackgroundWriter, Composer, dropped_text

        self._composer = Composer(prefix)
        self._writer: BackgroundWriter[tuple[Message, bytes]] = BackgroundWriter(
            lambda item: _send(link, *item),
            lambda lines: ({"op": "log", "text": dropped_text(lines)}, b""),
        )

    def show(self, event: str, **facts: Any) -> None:
        """An event of the job."""
        if event == "log":
            lines = facts["lines"]
            text = self._composer.lines(facts["rank"], lines, facts["unfinished"])
            self._writer.offer(({"op": "log", "text": text}, b""), len(text), len(lines))
        elif event in ("start", "note"):
            self.tell({"op": event, "text": facts["text"]})
        elif event == "arrived":
            self.tell({"op": event, "pids": dict(facts["pids"])})

    def tell(self, message: Message, blob: bytes = b"") -> None:
        """A message that is never dropped."""
        self._writer.offer((message, blob))

    def close(self) -> None:
        """Until the caller has read everything; it may take its time, or end."""
        self._writer.close(limit_s=threading.TIMEOUT_MAX)


def _send(link: Link, message: Message, blob: bytes) -> None:
    link.send(message, *((blob,) if blob else ()))


def _listen(link: Link, ask: Callable[..., None]) -> None:
    """The caller's requests; its end is the end of the job, without any grace."""
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    try:
        caller = Process.at_other_end(link.sock)
        poll.register(caller.fileno(), select.POLLIN)
    except ProcessError:
        caller = None  # the end of the socket must do
    is_open = True
    while is_open and not (caller is not None and caller.ended()):
        poll.poll()
        received, is_open = link.read_ready()
        for message, _, _ in received:
            ask(int(message["signal"]), now=bool(message.get("now")))
    ask(signal.SIGTERM, now=True)


if __name__ == "__main__":
    main()

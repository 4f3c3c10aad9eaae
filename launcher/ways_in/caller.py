"""The process that called `spawn`, as its conductor knows it: what it wants, and what it is told.

The other end of the socket is a `handle.Handle`. What the caller is told waits in a queue: one that
does not read stops no job.
"""

import select
import signal
import threading
from typing import Any

from torch_xdist.launcher.facts.errors import LauncherError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.head.ending import Ending
from torch_xdist.launcher.head.requests import Requests
from torch_xdist.launcher.head.runner import FirstAgent, run_job
from torch_xdist.launcher.viewing.background import BackgroundWriter, dropped_text
from torch_xdist.launcher.viewing.screen import Composer
from torch_xdist.system.errors import ProcessError
from torch_xdist.system.frames import Link, Message
from torch_xdist.system.process import Process


def run_its_job(link: Link, requests: Requests, first: FirstAgent | None) -> None:
    """Run the job that the caller sends, to its end, and tell how it was."""
    received = link.receive()
    if received is None:
        if first is not None:
            first.agent.end()
        return
    job = Job.from_json(received.message["job"])
    threading.Thread(target=_listen, args=(link, requests), daemon=True).start()
    teller = _Teller(link, job)
    stdin = received.descriptors[0] if received.descriptors else None
    try:
        teller.end(run_job(job, received.blob, teller.show, requests, first, stdin))
    except LauncherError as error:
        teller.tell({"op": "refused", "type": type(error).__name__, "text": str(error)})
    teller.close()


class _Teller:
    """Tells the caller, on a thread."""

    def __init__(self, link: Link, job: Job) -> None:
        labels = job.labels() if job.hosts else None
        self._composer = Composer(job.world_size > 1, labels=labels)
        self._has_pids_here = not job.hosts
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
        elif event == "arrived" and self._has_pids_here:
            self.tell({"op": event, "pids": dict(facts["pids"])})

    def end(self, ending: Ending) -> None:
        """The results of a job that went well, and how it ended."""
        if ending.exit_code == 0:
            for rank, blob in sorted(ending.results.items()):
                self.tell({"op": "result", "rank": rank}, blob)
        first = ending.failures[0] if ending.failures else None
        end = {
            "op": "end",
            "exit_code": ending.exit_code,
            "text": ending.text,
            "warnings": list(ending.warnings),
            "rank": first.rank if first else None,
            "kind": first.kind if first else "",
        }
        self.tell(end, ending.exception)

    def tell(self, message: Message, blob: bytes = b"") -> None:
        """A message that is never dropped."""
        self._writer.offer((message, blob))

    def close(self) -> None:
        """Until the caller has read everything; it may take its time, or end."""
        self._writer.close(limit_s=threading.TIMEOUT_MAX)


def _send(link: Link, message: Message, blob: bytes) -> None:
    link.send(message, *((blob,) if blob else ()))


def _listen(link: Link, requests: Requests) -> None:
    """What the caller asks for; its end is the end of the job, without any grace."""
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    try:
        process = Process.at_other_end(link.sock)
        poll.register(process.fileno(), select.POLLIN)
    except ProcessError:
        process = None  # the end of the socket must do
    is_open = True
    while is_open and not (process is not None and process.ended()):
        # First of all what came together with the job.
        received, is_open = link.read_ready()
        for message, _, _ in received:
            requests.ask(int(message["signal"]), now=bool(message.get("now")))
        if is_open:
            poll.poll()
    requests.ask(signal.SIGTERM, now=True)

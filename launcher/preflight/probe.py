"""What `xla-run check` runs on each host: it says what it finds, and tries its ways.

It is started as an agent is, and speaks over its stdin and stdout as one does: where they end, or
where nothing is heard any more, so does this process.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from torch_xdist.launcher.on_host.head_stream import PipesToHead, Stream
from torch_xdist.launcher.preflight import measure, ways
from torch_xdist.system.frames import Message


def main() -> None:
    """`python -m ...preflight.probe JOB_ID warm|cold MARK RANKS [CERTIFICATE]`, as of an agent.

    What it is to find out comes over stdin.
    """
    head = PipesToHead.as_told(sys.argv[5:])
    frame = head.config()
    if frame is not None:
        Probe(head, frame.message).run()
        threading.Event().wait()


class WayToHead(Protocol):
    """How what is found out is told."""

    def open(
        self, config: Message, hello: Message, post: Callable[[Message, bytes], None]
    ) -> Stream: ...


class Probe:
    """One host's part of a check; answers to questions are made on threads of their own.

    Args:
        config: the `token` of the check, and the `question` as `measure.facts` takes it.
    """

    def __init__(self, head: WayToHead, config: Message) -> None:
        self._head, self._config = head, config
        self._token: str = config["token"]
        self._stream: Stream | None = None
        self._is_open = threading.Event()

    def run(self) -> None:
        """Say what this host is; then there are ways to it, and it answers."""

        def heard(message: Message, blob: bytes) -> None:
            if message["op"] == "lost":
                os._exit(0)
            self.hear(message)

        self._stream = self._head.open(self._config, {"host": os.uname().nodename}, heard)
        self._is_open.set()
        found = measure.facts(self._config["question"])
        found["ports"], found["why_no_ports"] = self._listen(found.get("host", {}))
        self._say({"op": "facts", "facts": found})

    def _listen(self, host: dict[str, Any]) -> tuple[list[int], str]:
        if self._config["question"]["alone"]:
            return [], ""
        try:
            return ways.Listener(host.get("address", ""), self._token).ports, ""
        except OSError as error:
            # Python adds what it was doing, which the judge says better.
            return [], (error.strerror or str(error)).partition(" (while ")[0]

    def hear(self, message: Message) -> None:
        """What the head asks; never waits for an answer."""
        match message["op"]:
            case "clock":
                self._say({"op": "clock", "sent_s": message["sent_s"], "time_s": time.time()})
            case "reach" | "rates":
                action = self._reach if message["op"] == "reach" else self._rates
                threading.Thread(target=action, args=(message,), daemon=True).start()

    def _reach(self, order: Message) -> None:
        found = ways.reach(ways.json_places(order["places"]), order["limit_s"])
        self._say({"op": "reached", "found": {str(index): one for index, one in found.items()}})

    def _rates(self, order: Message) -> None:
        """One after the other, so that no two share a wire."""
        for index, places in ways.json_places(order["places"]).items():
            found = ways.rate(places[0], self._token, order["seconds"])
            self._say({"op": "rate", "index": index, "found": found})
        self._say({"op": "rated"})

    def _say(self, message: Message) -> None:
        self._is_open.wait()
        assert self._stream is not None
        with contextlib.suppress(OSError):
            self._stream.send(message)


if __name__ == "__main__":
    main()

"""The lines of one pod, each once and whole, over as many connections as it takes.

kubectl is asked for the time of each line, which is not shown: a new connection goes on from the
last one that came. It can begin at a whole second alone, so what had come of that is left out.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from torch_xdist.launcher.facts.errors import LauncherError
from torch_xdist.launcher.k8s.kubectl import Kubectl, last_words
from torch_xdist.launcher.k8s.manifest import CONTAINER

# (seconds since 1970, nanoseconds)
Time = tuple[int, int]
_START: Time = (0, 0)
_DROP_S = 1.0


class Lines:
    """What has been shown of a log, and what of a new connection to it is new. Pure but for `show`.

    A line that a connection cuts comes again, whole, by the next one.
    """

    def __init__(self, show: Callable[[bytes], None]) -> None:
        self._show = show
        self._last, self._of_last = _START, 0
        self._repeats, self._is_catching_up = 0, False
        self._rest = b""

    def since(self) -> str:
        """Where the next connection is to begin, as kubectl takes it; "": at the beginning."""
        if self._last == _START:
            return ""
        return datetime.fromtimestamp(self._last[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def connect(self) -> None:
        """A new connection begins."""
        self._repeats, self._is_catching_up = self._of_last, True

    def take(self, line: bytes) -> None:
        """A line with its time, as kubectl printed it."""
        if not line.endswith(b"\n"):
            self._rest = line
            return
        stamp, _, text = line.partition(b" ")
        at = parsed(stamp)
        if at is None:
            self._show(line)
        elif self._is_new(at):
            self._rest = b""
            self._of_last = self._of_last + 1 if at == self._last else 1
            self._last = at
            self._show(text)

    def end(self) -> None:
        """The log is over: what stands last in it without the end of a line is shown too."""
        if self._rest:
            self.take(self._rest + b"\n")

    def _is_new(self, at: Time) -> bool:
        if not self._is_catching_up or at > self._last:
            self._is_catching_up = False
            return True
        if at < self._last:
            return False
        self._repeats -= 1
        return self._repeats < 0


class PodLog:
    """The log of one pod on a thread of its own, until the pod has ended.

    Args:
        say: what goes wrong on the way, once each.
        pause_s: between two connections.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        pod: str,
        show: Callable[[bytes], None],
        say: Callable[[str], None],
        pause_s: float = 1.0,
    ) -> None:
        self._kubectl, self._pod, self._say, self._pause_s = kubectl, pod, say, pause_s
        self._lines = Lines(show)
        self._has_ended, self._is_given_up = threading.Event(), False
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._kill: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._follow, name="xla-run-pod-log", daemon=True)
        self._thread.start()

    def finish(self, limit_s: float) -> None:
        """The pod has ended: wait for its last lines, at most so long; then kubectl is killed."""
        self._has_ended.set()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            with self._lock:
                self._kill()
            self._thread.join(limit_s)
            self._is_given_up = True

    def drop(self) -> None:
        """Leave at once; a thread that waits for a terminal is left behind."""
        self._has_ended.set()
        self._is_given_up = True
        with self._lock:
            self._kill()
        self._thread.join(_DROP_S)

    def _follow(self) -> None:
        while not self._is_given_up:
            # Asked first: what a pod writes before it ends is read after it has.
            is_last = self._has_ended.is_set()
            told = self._read(follow=not is_last)
            if is_last:
                self._lines.end()
                return
            if told and not self._has_ended.is_set() and told not in self._told:
                self._told.add(told)
                self._say(f"the log of pod {self._pod} is asked for again: {told}")
            self._has_ended.wait(self._pause_s)

    def _read(self, *, follow: bool) -> str:
        """One connection, to its end; what kubectl says of a failure."""
        since = self._lines.since()
        words = ["logs", self._pod, f"--container={CONTAINER}", "--timestamps"]
        words += [f"--since-time={since}"] if since else []
        self._lines.connect()
        try:
            stream = self._kubectl.stream(*words, *(["--follow"] if follow else []))
        except LauncherError as error:
            return str(error)
        with self._lock:
            self._kill = stream.kill
            if self._is_given_up:
                stream.kill()
        code, said = stream.lines(self._lines.take)
        return last_words(said) if code != 0 else ""


def parsed(stamp: bytes) -> Time | None:
    """A time such as 2031-05-17T08:30:00.123456789Z; None where it is none."""
    text = stamp.decode("ascii", errors="replace")
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    try:
        at = datetime.fromisoformat((whole + rest[len(digits) :]).replace("Z", "+00:00"))
    except ValueError:
        return None
    if at.tzinfo is None or (dot and not digits):
        return None
    return int(at.timestamp()), int(digits.ljust(9, "0")[:9] or 0)

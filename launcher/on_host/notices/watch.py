"""The thread that asks the metadata server, all the time, whether this machine is taken away.

Nothing waits for it: a server that is slow, gone or talks nonsense costs its notices, which is told
once, and no more.
"""

import threading
from collections.abc import Callable

from torch_xdist.launcher.facts.settings import Environ, flag, text
from torch_xdist.launcher.on_host.notices import cloud
from torch_xdist.system import tpu_metadata
from torch_xdist.system.frames import Message

# A preempted machine has 30 s.
EVERY_S = 3.0
_LIMIT_S = 2.0
# So many times in a row may pass without an answer.
_MISSED = 3


def is_wanted(environ: Environ, *, has_tpu: bool) -> bool:
    """Whether this machine's server is to be asked: on a TPU, unless a variable says otherwise."""
    by_default = has_tpu and not flag(environ, "TPU_SKIP_MDS_QUERY")
    return flag(environ, "XLA_RUN_NOTICES", by_default)


class Watch:
    """Asks until a notice has come.

    Args:
        environ: names the server, if it is another than Google's.
        say: tells the head.
    """

    def __init__(
        self, environ: Environ, say: Callable[[Message], object], every_s: float = EVERY_S
    ) -> None:
        # Google's own tools read the same variable.
        self._host = text(environ, "GCE_METADATA_HOST") or tpu_metadata.HOST
        self._say, self._every_s = say, every_s
        self._over = threading.Event()
        self._missed = 0
        self._has_warned = False

    def start(self) -> None:
        """Ask from now on."""
        threading.Thread(target=self._run, name="notices", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; a question that is under way ends by itself."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            why = self.look()
            if why:
                self._say({"op": "leaves", "why": why, "kind": "preempted"})
                return
            self._over.wait(self._every_s)

    def look(self) -> str:
        """Ask once: why this machine is taken away; "" where it is not, or nobody knows."""
        trouble = ""
        for key in cloud.KEYS:
            try:
                answer = tpu_metadata.of_instance(key, _LIMIT_S, self._host)
            except (OSError, ValueError) as error:
                trouble = trouble or f"instance/{key}: {type(error).__name__}: {error}"
                continue
            if why := cloud.why_taken(key, answer):
                return why
            trouble = trouble or cloud.why_unknown(key, answer)
        self._count(trouble)
        return ""

    def _count(self, trouble: str) -> None:
        self._missed = self._missed + 1 if trouble else 0
        if self._missed >= _MISSED and not self._has_warned:
            self._has_warned = True
            told = (
                f"warning: notices of preemption cannot be read ({trouble}); the job will not be"
                " stopped before this machine is taken away; set XLA_RUN_NOTICES=0 where there are"
                " none"
            )
            self._say({"op": "note", "warning": told})

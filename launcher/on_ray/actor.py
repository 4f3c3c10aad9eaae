"""What runs on a node of Ray: an actor with an agent as its child.

Its class travels by value, so it needs Python and Ray alone; whether torch-xdist is there is found
out by the agent. The job's variables and secrets reach the agent over its stdin, in TLS. Where the
actor ends, however it does, the agent sees the end of its stdin and ends its ranks.
"""

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence

# Ray gives a worker threads for its share of cores, and a debugger of its own: our ranks share out
# the cores of the agent, and have a debugger where they have a stdin.
_OF_THE_WORKER = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "SSH_CONNECTION", "SSH_CLIENT")

# Ray's workers ignore SIGINT or hold it back, and so would all that they start.
_WITH_SIGNALS = (
    "import os,signal,sys;signal.signal(signal.SIGINT,signal.SIG_DFL);"
    "signal.pthread_sigmask(signal.SIG_SETMASK,());"
    "os.execv(sys.executable,[sys.executable,*sys.argv[1:]])"
)


class AgentActor:
    """Runs one agent and carries its pipes; `read` and `write` may run at the same time."""

    def start(
        self,
        python: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        kept: Sequence[str],
    ) -> str:
        """Start the agent; "" or why it cannot be.

        Args:
            python: the interpreter; "": the one of this worker.
            kept: variables that the user's runtime environment has set.
        """
        import ray  # the address by which the other nodes of the cluster reach this one

        address = str(ray.util.get_node_ip_address())
        dropped = {name for name in _OF_THE_WORKER if name not in kept}
        own = {name: value for name, value in os.environ.items() if name not in dropped}
        words = [python or sys.executable, "-P", "-c", _WITH_SIGNALS, *argv]
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**own, "XLA_RUN_ADDRESS": address, **env},
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            return f"{words[0]} cannot be started there: {error.strerror}"
        self._fds = {}
        self._poll = select.poll()
        for name in ("stdout", "stderr"):
            fd = getattr(self._process, name).fileno()
            self._fds[fd] = name
            self._poll.register(fd, select.POLLIN)
        return ""

    def write(self, data: bytes) -> bool:
        """Bytes for its stdin, b"" for the end; False where it does not read any more."""
        assert self._process.stdin is not None
        try:
            if not data:
                self._process.stdin.close()
            view = memoryview(data)
            while view:
                view = view[self._process.stdin.write(view) :]
        except (OSError, ValueError):
            return False
        return True

    def read(self, most: int) -> tuple[str, bytes, int]:
        """Wait for bytes of its "stdout" or "stderr"; "end" and its code when nothing will come."""
        while True:
            for fd, _ in self._poll.poll():
                data = os.read(fd, most)
                if data:
                    return self._fds[fd], data, 0
                self._poll.unregister(fd)
                if self._fds[fd] == "stdout":
                    return "end", b"", self._code()

    def _code(self) -> int:
        try:
            return self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

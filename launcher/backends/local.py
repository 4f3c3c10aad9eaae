"""The backend for this machine: one agent, as a child of the head."""

import functools
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from torch_xdist.launcher.backends.backend import Gone, Plane, Send
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.settings import LOOPBACK, environment
from torch_xdist.system import process_tree
from torch_xdist.system.frames import Link, Message
from torch_xdist.system.process import Child

# Linux takes 128 KiB for one variable, and 2 MiB for all and the command line together.
_MOST_VALUE_BYTES = 100_000
_ENDS_S = 0.5
_MOST_ENVIRON_BYTES = 1 << 20


class ThisHost:
    """The backend for this machine: one agent, started as a child.

    Args:
        env: variables for what the nursery imports, on top of this process's own.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def hosts(self) -> Sequence[str]:
        return [LOOPBACK]

    def take(self, hosts: Sequence[Host]) -> None:
        """There is no other."""

    def there(self) -> Sequence[int]:
        return [0]

    def rank_secret(self, attempt: int) -> bytes:
        return b""

    def close(self, exit_code: int, text: str) -> None:
        """Nothing outlives an attempt."""

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> "AgentHere":
        ours, theirs = socket.socketpair()
        process = Child.start(
            [
                *(sys.executable, "-P", "-m", "torch_xdist.launcher.on_host.agent"),
                *(job_id, warmth, mark),
            ],
            stdin=theirs.fileno(),
            env={**environment(), **startable(self._env)},
            # A Ctrl-C on the terminal is for the launcher, which then tells the agents.
            start_new_session=True,
        )
        theirs.close()
        return AgentHere(process, ours, mark)


class AgentHere:
    """The agent process of this host. Its stdin is a socket to us: where it ends, the agent does.

    Args:
        process: our child, from `ThisHost`, or forked with us by `inherit`.
    """

    def __init__(self, process: Child, stdin: socket.socket, mark: str) -> None:
        self._process, self._stdin, self._mark = process, Link(stdin), mark
        # What is left where the agent and the nursery are killed together becomes ours.
        process_tree.adopt_orphans()
        self._children_before = {*process_tree.children(os.getpid())}

    def connect(self, plane: Plane, config: Message, stdin: int | None) -> Send:
        """It comes to the head's server. The token travels here: no other process can read it."""
        config = {**config, "address": plane.server.address, "token": plane.server.token}
        self._stdin.send(config, descriptors=[] if stdin is None else [stdin])
        return functools.partial(plane.server.send, config["host_index"])

    def why_gone(self) -> str | None:
        code = self._process.poll()
        if not self._process.ended():
            return None
        return "its process ended" + (f" with code {code}" if code is not None else "")

    def silent_s(self) -> float:
        return 0.0  # the end of its process is seen

    def lives_on_s(self) -> float:
        return 0.0

    def explain(self, why: str, name: str, *, has_said_hello: bool) -> Gone:
        # The end of its stream may be seen before that of its process, which tells more.
        self._process.wait(_ENDS_S)
        text = f"the agent of host {name or '?'} has died ({self.why_gone() or why})"
        if has_said_hello:
            # Somebody killed it, or memory ran out: as with any other host another may do better.
            return Gone(text, int(ExitCode.HOST), is_lost=True)
        return Gone(text, int(ExitCode.INTERNAL))

    def end(self, limit_s: float = 10.0) -> None:
        self._stdin.close()
        if not self._process.wait(limit_s):
            self._process.kill()
            self._process.wait()
        if self._process.code != 0:
            process_tree.sweep(self._mark, keep={os.getpid()}, roots=[self._process.pid])
            self._sweep_adopted()
        self._process.close()

    def _sweep_adopted(self) -> None:
        """End what the agent and the nursery have left to us, whatever its session is."""
        for pid in {*process_tree.children(os.getpid())} - self._children_before:
            process_tree.sweep(self._mark, keep={os.getpid()}, roots=[pid])
            with Child(pid) as orphan:
                orphan.signal(signal.SIGKILL)
                orphan.wait(1.0)


def startable(env: Mapping[str, str]) -> dict[str, str]:
    """Those variables that a program can be started with; the ranks get the others later."""
    fitting: dict[str, str] = {}
    room = _MOST_ENVIRON_BYTES
    for name, value in env.items():
        size = len(os.fsencode(name)) + len(os.fsencode(value)) + 2
        if size <= min(room, _MOST_VALUE_BYTES):
            fitting[name] = value
            room -= size
    return fitting

"""The backend for other machines: one agent on each, at the end of an ssh connection.

It is OpenSSH's own program, with the user's own configuration: names, keys, jump hosts. The control
plane travels inside the connection, as the stdin and stdout of the agent, so no port is opened,
nobody without a login is heard, and all is encrypted. The remote command is the same for every job
and holds no secret; what the agent is to know comes over its stdin.
"""

import collections
import json
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from torch_xdist.launcher.backends.backend import Gone, Plane, Send
from torch_xdist.launcher.backends.local import startable
from torch_xdist.launcher.facts.errors import ExitCode, HostError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.system.frames import Message
from torch_xdist.system.process import Child

# What a program that the shell cannot start ends with, and ssh of a trouble of its own.
_NOT_STARTED, _SSH_FAILED = (126, 127), 255
# How ssh begins when it speaks of a connection that has ended: `explain` tells that.
_SSHS_OWN = ("Connection to ", "Timeout, server ", "client_loop: ", "ssh: ")
_KEPT_LINES = 20
_END_S = 2.0
_CONNECT_S = 10
_OPTIONS = (
    *("-T", "-x", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
    *("-o", f"ConnectTimeout={_CONNECT_S}"),
    # So that it ends by itself where nobody is left to end it.
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
# Reads one line of JSON, byte by byte, so that what follows is left to the program it becomes.
# No quote, dollar sign or exclamation mark of any shell's is in it.
_FIRST_WORDS = (
    'import json,os,sys;f=open(0,"rb",0);d=json.loads(f.readline());'
    'os.environ.update(d["env"]);os.execv(sys.executable,[sys.executable,*d["argv"]])'
)
_MODULE = "torch_xdist.launcher.on_host.agent_over_pipes"


class SshHosts:
    """The hosts of a job, reached by ssh.

    Args:
        hosts: with their slots.
        command: ssh and the user's own options, such as ["ssh", "-F", "config"].
        python: the interpreter on the hosts.
        env: variables for the agents, and so for all that they start.
        module: what runs on the hosts, an agent or what speaks as one.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        command: Sequence[str],
        python: str,
        env: Mapping[str, str],
        module: str = _MODULE,
    ) -> None:
        self._hosts, self._ssh, self._python = list(hosts), list(command), python
        self._module = module
        self.env = startable(env)

    def hosts(self) -> Sequence[str]:
        return [host.name for host in self._hosts]

    def command(self, host_index: int) -> list[str]:
        """The whole command for one host; it holds nothing that others may not see."""
        host = self._hosts[host_index]
        port = ["-p", str(host.port)] if host.port else []
        remote = f"exec {shlex.quote(self._python)} -P -c {shlex.quote(_FIRST_WORDS)}"
        return [*self._ssh, *_OPTIONS, *port, "--", host.destination, remote]

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> "SshAgent":
        """Start ssh, and write to it what becomes the agent.

        Raises:
            HostError: there is no ssh here.
        """
        first = self.first_line(host_index, job_id, warmth, mark)
        return SshAgent(self._hosts[host_index], self.command(host_index), self._python, first)

    def first_line(self, host_index: int, job_id: str, warmth: str, mark: str) -> bytes:
        """What the remote command reads: the variables and the arguments of the agent."""
        slots = self._hosts[host_index].slots
        argv = ["-P", "-m", self._module, job_id, warmth, mark, str(slots)]
        return (json.dumps({"env": self.env, "argv": argv}) + "\n").encode()


class SshAgent:
    """An agent at the other end of an ssh process."""

    def __init__(self, host: Host, command: Sequence[str], python: str, first: bytes) -> None:
        self._host, self._python, self._first = host, python, first
        theirs_in, ours_in = os.pipe2(os.O_CLOEXEC)
        ours_out, theirs_out = os.pipe2(os.O_CLOEXEC)
        ours_err, theirs_err = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = Child.start(
                command,
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=theirs_err,
                # A Ctrl-C on the terminal is for the launcher, which then tells the agents.
                start_new_session=True,
            )
        except OSError as error:
            for fd in (ours_in, ours_out, ours_err):
                os.close(fd)
            raise HostError(
                f"host {host.name}: {command[0]} cannot be started here ({error.strerror}); "
                "install OpenSSH's client, or name yours by --ssh-command"
            ) from error
        finally:
            for fd in (theirs_in, theirs_out, theirs_err):
                os.close(fd)
        self._stream = PipeStream(ours_out, ours_in, is_head=True)
        self._said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._is_connected = False
        self._listener = threading.Thread(
            target=self._listen, args=(os.fdopen(ours_err, "rb"),), daemon=True
        )

    def connect(self, plane: Plane, config: Message, stdin: int | None) -> Send:
        """Its stdin and stdout are the control plane; no descriptor can be given to it."""
        index, self._post = int(config["host_index"]), plane.post
        self._index, self._is_connected = index, True
        self._stream.send_bytes(self._first)
        self._stream.send(config)
        self._listener.start()
        self._stream.start(
            lambda message, blob: plane.post(index, message, blob),
            self._tell_gone,
            beat_s=config["beat_s"],
            lost_s=config["lost_s"],
        )
        return self._stream.send

    def why_gone(self) -> str | None:
        return None  # the end of its stream says it

    def silent_s(self) -> float:
        return self._stream.silent_s()

    def explain(self, why: str, name: str, *, has_said_hello: bool) -> Gone:
        code, last = self._process.poll(), self._last_words()
        if has_said_hello:
            told = f"; {last}" if last and code == _SSH_FAILED else ""
            return Gone(f"{why}{told}", int(ExitCode.HOST), is_lost=True)
        if code == _SSH_FAILED:
            text = f"ssh cannot reach it: {last or why}; try `ssh {self._host.destination}` by hand"
        elif code in _NOT_STARTED:
            text = (
                f"{self._python} cannot be started there: {last}; install the same Python "
                "environment there, or name the one it has by --python"
            )
        else:
            ended = f"with code {code}" if code is not None else f"({why})"
            text = (
                f"its agent ended {ended} before it answered: {last or 'it said nothing'}; "
                "torch-xdist must be installed there as here"
            )
        return Gone(f"host {name}: {text}", int(ExitCode.HOST))

    def end(self, limit_s: float = 10.0) -> None:
        if self._is_connected:
            self._stream.close(min(_END_S, limit_s))
        # Where the connection is cut nobody can be waited for: the agent ends its ranks by itself.
        if not self._process.wait(0.1 if self._is_cut() else limit_s):
            self._process.kill()
            self._process.wait()
        self._process.close()

    def _is_cut(self) -> bool:
        """Whether it cannot be expected to end by itself: it is lost, or has never begun."""
        return self._stream.is_lost or not self._stream.has_begun

    def _tell_gone(self, why: str) -> None:
        """On the thread of the stream: ssh says its last words when it ends."""
        if not self._stream.is_lost:
            self._process.wait(_END_S)
            self._listener.join(_END_S)
        self._post(self._index, {"op": "gone", "why": why}, b"")

    def _listen(self, stderr: BinaryIO) -> None:
        """What ssh says, and what is printed on the host by nobody in particular."""
        with stderr:
            for data in stderr:
                line = data.decode(errors="replace").strip()
                if line:
                    self._said.append(line)
                    if self._stream.has_begun and not line.startswith(_SSHS_OWN):
                        note = {"op": "note", "text": f"[{self._host.name}] {line}"}
                        self._post(self._index, note, b"")

    def _last_words(self) -> str:
        noise = self._stream.noise.strip().splitlines()
        said = [*noise[-1:], *self._said]
        return said[-1] if said else ""

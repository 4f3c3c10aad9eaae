"""Agents on other machines, each at the far end of a command's stdin and stdout.

The command (ssh, srun, gcloud) is a `Way`: it runs a program on a host with our pipes attached. The
control plane travels inside them, so no port is opened, and whoever may run the command may speak
to the agent. What is run there is the same for every job and holds no secret; what the agent is to
know comes over its stdin. ssh encrypts what it carries; for an engine of the cluster we do.
"""

import collections
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch_xdist.launcher.backends.backend import Gone, Plane, Send
from torch_xdist.launcher.backends.engine_pipes import EnginePipes
from torch_xdist.launcher.backends.last_word import LastWord
from torch_xdist.launcher.backends.local import startable
from torch_xdist.launcher.backends.return_to_agent import ReturnToAgent, new_place
from torch_xdist.launcher.facts.errors import ExitCode, HostError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.pipe_stream import PipeStream, Tell
from torch_xdist.launcher.stream_loop import Lines
from torch_xdist.system import piped
from torch_xdist.system.frames import Message
from torch_xdist.system.process import Child

_KEPT_LINES = 20
_END_S = 2.0
# Reads one line of JSON, byte by byte, so that what follows is left to the program it becomes.
# No quote, dollar sign or exclamation mark of any shell's is in it.
FIRST_WORDS = (
    'import json,os,sys;f=open(0,"rb",0);d=json.loads(f.readline());'
    'os.environ.update(d["env"]);os.execv(sys.executable,[sys.executable,*d["argv"]])'
)
_MODULE = "torch_xdist.launcher.on_host.agent_over_pipes"


def _to_nobody(text: str) -> None:
    """Where nothing is ever looked for again, nothing is told of that."""


class Way(Protocol):
    """A program that runs a command on a host, and what its failures mean.

    `said` are lines of its stderr (and what came instead of an agent's stdout), oldest first, never
    empty; `code` is what it ended with, None while it lives.
    """

    advice: str
    """What to do where it cannot be started here."""
    kills_all: bool
    """Whether what it has started on this machine is to be killed with it."""
    tries_s: Sequence[float]
    """How long a try may take to find again what it has started there, the last one for all further
    tries; empty: nothing there lives on without it."""

    engine: str
    """What carries the pipes, where that is an engine of the cluster (`engine_pipes`); else ""."""

    def prepare(self, hosts: Sequence[Host]) -> None:
        """What must be done once before the first agent is started.

        Raises:
            HostError: it cannot be.
        """

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """The command line that runs `words` on a host with stdin, stdout and stderr attached."""

    def environ(self) -> Mapping[str, str] | None:
        """The program's own variables; None: those of this process."""

    def is_own(self, line: str) -> bool:
        """Whether the program says this line itself, of what became of its command."""

    def is_news(self, line: str) -> bool:
        """Whether one of those lines is to be shown at once, also before the agent has come."""

    def why_no_python(self, code: int | None, said: Sequence[str]) -> str:
        """The line that says that the interpreter cannot be started there, "" where it was."""

    def why_unreached(self, host: Host, code: int | None, said: Sequence[str]) -> str:
        """Why it did not come there, and what to do; "" where it did, and the agent failed."""

    def why_lost(self, code: int | None, said: Sequence[str]) -> str:
        """What it says of the end of an agent that was there, "" for nothing."""


class HostsOverCommand:
    """The hosts of a job, reached by a command.

    Args:
        hosts: with their slots.
        python: the interpreter on the hosts.
        env: variables for the agents, and so for all that they start.
        module: what runs on the hosts, an agent or what speaks as one.
        inside: words that start the interpreter there, where it is not started by itself.
        note: shows what becomes of a lost connection; from any thread.
    """

    def __init__(
        self,
        way: Way,
        hosts: Sequence[Host],
        python: str,
        env: Mapping[str, str],
        module: str = _MODULE,
        inside: Sequence[str] = (),
        note: Tell = _to_nobody,
    ) -> None:
        self._inside, self._note = inside, note
        self._way, self._hosts, self._python, self._module = way, list(hosts), python, module
        self.env = startable(env)
        self._engine: EnginePipes | None = None

    def hosts(self) -> Sequence[str]:
        return [host.name for host in self._hosts]

    def take(self, hosts: Sequence[Host]) -> None:
        self._hosts = list(hosts)

    def there(self) -> Sequence[int]:
        return []

    def rank_secret(self, attempt: int) -> bytes:
        return b""

    def close(self, exit_code: int, text: str) -> None:
        """Nothing outlives an attempt."""

    def command(self, host_index: int) -> list[str]:
        """The whole command for one host; it holds nothing that others may not see."""
        words = [*self._inside, self._python, "-P", "-c", FIRST_WORDS]
        return self._way.command(self._hosts[host_index], words)

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> "AgentOverCommand":
        """Start the command, and write to it what becomes the agent.

        Raises:
            HostError: there is no such program here, or no way there.
        """
        if host_index == 0:
            self._way.prepare(self._hosts)
        if self._way.engine and self._engine is None:
            self._engine = EnginePipes(self._way.engine, self._note)
        first = self.first_line(host_index, job_id, warmth, mark)
        command, host = self.command(host_index), self._hosts[host_index]
        told = (self._way, host, command, self._python, first, self.env, self._engine)
        return AgentOverCommand(*told, note=self._note)

    def first_line(self, host_index: int, job_id: str, warmth: str, mark: str) -> bytes:
        """What the command reads there: the variables and the arguments of the agent."""
        slots = self._hosts[host_index].slots
        # Hosts may be one machine, where each ends what has its mark.
        argv = ["-P", "-m", self._module, job_id, warmth, f"{mark}.{host_index}", str(slots)]
        env = self.env
        if self._engine is not None:
            argv, env = [*argv, *self._engine.words], self._engine.open_part(env)
        return (json.dumps({"env": env, "argv": argv}) + "\n").encode()


class AgentOverCommand:
    """An agent at the other end of a process of ours."""

    def __init__(
        self,
        way: Way,
        host: Host,
        command: Sequence[str],
        python: str,
        first: bytes,
        env: Mapping[str, str],
        engine: EnginePipes | None = None,
        note: Tell = _to_nobody,
    ) -> None:
        self._way, self._host, self._python, self._first = way, host, python, first
        self._engine = engine
        self._command, self._env, self._note = command, env, note
        self._way_back: ReturnToAgent | None = None
        self._last_word: LastWord | None = None
        try:
            started = piped.start(command, way.environ())
        except OSError as error:
            raise HostError(
                f"host {host.name}: {command[0]} cannot be started here ({error.strerror}); "
                f"{way.advice}"
            ) from error
        self._process = started.process
        tls = engine.accepting() if engine else None
        self._stream = PipeStream(started.stdout, started.stdin, is_head=True, tls=tls)
        self._kept: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._is_connected = False
        self._said_by = Lines(started.stderr, self._listen)

    def connect(self, plane: Plane, config: Message, stdin: int | None) -> Send:
        """Its stdin and stdout are the control plane; no descriptor can be given to it."""
        index, self._post = int(config["host_index"]), plane.post
        self._index, self._is_connected = index, True
        self._stream.send_open(self._first)
        within_s, line = 0.0, self._stream.line
        on_trouble: Tell = _unheard
        if self._engine is not None:
            self._engine.greet(self._stream, self._env)
            config = {**config, "lost_s": self._engine.lost_s(config)}
            on_trouble = self._engine.tell_silence(self._host.name, config["lost_s"])
        if self._way.tries_s and config.get("reconnect_s") and line is not None:
            within_s, config = config["reconnect_s"], {**config, "found_at": new_place()}
            self._way_back = self._way_back_to(config["found_at"])
            on_trouble = self._way_back.try_for
            self._last_word = LastWord(line.write_fd)
        self._stream.send(config)
        self._said_by.start()
        self._stream.start(
            lambda message, blob: plane.post(index, message, blob),
            self._tell_gone,
            beat_s=config["beat_s"],
            lost_s=config["lost_s"],
            within_s=within_s,
            on_trouble=on_trouble,
        )
        return self._send

    def _send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        self._stream.send(message, blob)
        if message["op"] == "bye":
            self._stream.part()

    def _way_back_to(self, found_at: Mapping[str, str]) -> ReturnToAgent:
        environ, name = self._way.environ(), self._host.name
        return ReturnToAgent(
            *(name, self._command, environ, self._env, found_at, self._stream),
            note=self._note,
            took=self._take,
            tries_s=self._way.tries_s,
            kills_all=self._way.kills_all,
        )

    def _take(self, process: Child, stderr: int, last_word: LastWord) -> None:
        """Another process carries the stream now; the one before has nothing to do any more."""
        self._keep_back()
        self._last_word = last_word
        Lines(stderr, self._listen).start()
        before, self._process = self._process, process
        self._kill(before)

    def _kill(self, process: Child) -> None:
        process.kill(group=self._way.kills_all)
        process.wait()
        process.close()

    def why_gone(self) -> str | None:
        return None  # the end of its stream says it

    def silent_s(self) -> float:
        return self._stream.silent_s()

    def lives_on_s(self) -> float:
        return self._stream.lives_on_s()

    def explain(self, why: str, name: str, *, has_said_hello: bool) -> Gone:
        code, said = self._process.poll(), self._said() or [why]
        if has_said_hello:
            told = self._way.why_lost(code, said)
            text = why if told in ("", why) else f"{why}; {told}"
            return Gone(text, int(ExitCode.HOST), is_lost=True)
        if told := self._way.why_no_python(code, said):
            text = (
                f"{self._python} cannot be started there: {told}; install the same Python "
                "environment there, or name the one it has by --python"
            )
        elif not (text := self._way.why_unreached(self._host, code, said)):
            ended = f"with code {code}" if code is not None else f"({why})"
            last = self._last_words(said) if said != [why] else "it said nothing"
            text = (
                f"its agent ended {ended} before it answered: {last}; "
                "torch-xdist must be installed there as here"
            )
        return Gone(f"host {name}: {text}", int(ExitCode.HOST))

    def end(self, limit_s: float = 10.0) -> None:
        if self._way_back is not None:
            self._way_back.stop()
        if self._is_connected:
            self._stream.close(min(_END_S, limit_s))
        self._keep_back()
        # Where the connection is cut nobody can be waited for: the agent ends its ranks by itself.
        if self._process.wait(0.1 if self._is_cut() else limit_s):
            self._process.close()
        else:
            self._kill(self._process)

    def _keep_back(self) -> None:
        if self._last_word is not None:
            self._last_word.keep_back()

    def _is_cut(self) -> bool:
        """Whether it cannot be expected to end by itself: it is lost, or has never begun."""
        return self._stream.is_lost or not self._stream.has_begun

    def _tell_gone(self, why: str) -> None:
        """The command says its last words when it ends."""
        if not self._stream.is_lost:
            self._process.wait(_END_S)
            self._said_by.ended.wait(_END_S)
        self._post(self._index, {"op": "gone", "why": why}, b"")

    def _listen(self, line: str) -> None:
        """What the command says, and what is printed on the host by nobody in particular."""
        self._kept.append(line)
        if self._is_shown(line):
            self._post(self._index, {"op": "note", "text": f"[{self._host.name}] {line}"}, b"")

    def _is_shown(self, line: str) -> bool:
        if self._way.is_own(line):
            return self._way.is_news(line)
        return self._stream.has_begun

    def _said(self) -> list[str]:
        noise = self._stream.noise.strip().splitlines()
        return [*noise[-1:], *self._kept]

    def _last_words(self, said: Sequence[str]) -> str:
        """The last line of what ran there, else of the command itself."""
        theirs = [line for line in said if not self._way.is_own(line)]
        return (theirs or said)[-1]


def _unheard(why: str) -> None:
    """Of trouble that nobody can do anything about."""

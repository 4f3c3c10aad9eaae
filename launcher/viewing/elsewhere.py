"""A command of `xla-run` on another machine: what it prints there is printed here, with its code.

It goes over the user's own ssh, which is all the authentication there is. What is typed travels
over stdin and stands in no list of processes. Where this side ends, or the connection, the command
there ends too: `from_afar` there hears no beats any more.
"""

import collections
import contextlib
import json
import os
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from torch_xdist import __version__
from torch_xdist.launcher.backends.over_command import FIRST_WORDS
from torch_xdist.launcher.backends.ssh import Ssh
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.system import piped

MODULE = "torch_xdist.launcher.from_afar"
HELLO = b"\x01xla-run "
BEAT_S = 5.0
SILENT_S = 20.0
_HELLO_S = 60.0
_END_S = 10.0
_KEPT_LINES = 20


@dataclass(frozen=True)
class Elsewhere:
    """One command on another host.

    `ssh` is the program and the user's own options, `python` the interpreter there, `words` what
    follows `xla-run`.
    """

    host: Host
    ssh: Sequence[str]
    python: str
    words: Sequence[str]


class Command:
    """The command while it runs.

    Raises:
        HostError: there is no ssh here.
    """

    def __init__(self, asked: Elsewhere) -> None:
        self._asked, self._way = asked, Ssh(asked.ssh)
        words = self._way.command(asked.host, [asked.python, "-P", "-c", FIRST_WORDS])
        try:
            started = piped.start(words)
        except OSError as error:
            raise HostError(
                f"host {asked.host.name}: {words[0]} cannot be started here ({error.strerror}); "
                f"{self._way.advice}"
            ) from error
        self._process, self._stdin = started.process, started.stdin
        self._out, self._err = os.fdopen(started.stdout, "rb"), os.fdopen(started.stderr, "rb")
        self._said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._has_begun = self._is_late = False
        self._signals = 0
        self._over = threading.Event()

    def lines(self, show_error: Callable[[bytes], None]) -> Generator[bytes, None, None]:
        """What it prints; on a thread, what it says on stderr is shown.

        Raises:
            HostError: the host cannot be reached, or has no torch-xdist such as ours.
        """
        self._listener = threading.Thread(target=self._listen, args=(show_error,), daemon=True)
        self._listener.start()
        limit = threading.Timer(_HELLO_S, self._give_up)
        limit.daemon = True
        limit.start()
        try:
            told = {"version": __version__, "words": [*self._asked.words]}
            self._send(json.dumps({"env": {}, "argv": ["-P", "-m", MODULE]}) + "\n")
            self._send(json.dumps(told) + "\n")
            self._await_hello()
            limit.cancel()
            threading.Thread(target=self._beat, daemon=True).start()
            yield from self._out
            self._process.wait(_END_S)
            self._listener.join(_END_S)
        finally:
            limit.cancel()
            self._end()
            self._listener.join(1.0)

    def exit_code(self) -> int:
        """Its own, after the last line.

        Raises:
            HostError: the connection was lost.
        """
        code = self._process.code
        said = [line for line in self._said if self._way.is_own(line)] or ["ssh has not said why"]
        if why := self._way.why_lost(code, said):
            raise HostError(f"host {self._asked.host.name}: the connection was lost: {why}")
        return 255 if code is None else code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Let it have a signal; the second time it is left alone there, and ends by itself."""
        self._signals += 1
        if self._signals > 1 or not self._has_begun:
            self._process.kill()
        else:
            self._send(f"{number}\n")

    def _await_hello(self) -> None:
        noise: list[str] = []
        for line in self._out:
            if line.startswith(HELLO):
                self._check(json.loads(line.removeprefix(HELLO)))
                self._has_begun = True
                return
            noise.append(line.decode(errors="replace").strip())
        self._process.wait(_END_S)
        self._listener.join(_END_S)
        raise HostError(f"host {self._asked.host.name}: {self._why_not(noise)}")

    def _check(self, hello: dict[str, str]) -> None:
        if hello.get("version") != __version__:
            raise HostError(
                f"host {self._asked.host.name}: torch-xdist {hello.get('version')} is there, and "
                f"{__version__} here; install the same on both, or name another interpreter by "
                "--python"
            )

    def _why_not(self, noise: Sequence[str]) -> str:
        code, python = self._process.code, self._asked.python
        said = [*self._said] or noise[-1:] or ["it said nothing"]
        if self._is_late:
            return (
                f"no answer in {_HELLO_S:.0f} s; try `ssh {self._asked.host.destination}` by hand"
            )
        if self._signals:
            return "given up before it answered"
        if why := self._way.why_unreached(self._asked.host, code, said):
            return why
        advice = "install it there as here, or name the interpreter that has it by --python"
        if why := self._way.why_no_python(code, said):
            return f"{python} cannot be started there: {why}; name one that is there by --python"
        for line in said:
            if "No module named" in line:
                return f"{python} there has no torch-xdist such as this one ({line}); {advice}"
        return f"{python} ended there with code {code} before it answered: {said[-1]}; {advice}"

    def _listen(self, show: Callable[[bytes], None]) -> None:
        # It says hello here as well: whether that on stdout is read yet, says nothing of this line.
        has_begun = False
        with self._err:
            for line in self._err:
                if line.startswith(HELLO):
                    has_begun = True
                    continue
                text = line.decode(errors="replace").rstrip()
                self._said.append(text)
                if has_begun and not self._way.is_own(text):
                    show(line)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            self._send("\n")

    def _send(self, text: str) -> None:
        # Where it has ended already, its own words say why.
        with contextlib.suppress(OSError):
            os.write(self._stdin, text.encode())

    def _give_up(self) -> None:
        self._is_late = True
        self._process.kill()

    def _end(self) -> None:
        self._over.set()
        os.close(self._stdin)
        if not self._process.wait(0 if self._signals > 1 or not self._has_begun else _END_S):
            self._process.kill()
            self._process.wait()
        self._out.close()

"""The way to other machines by ssh.

It is OpenSSH's own program, with the user's own configuration: names, keys, jump hosts. Nobody
without a login is heard, and all is encrypted.
"""

import shlex
from collections.abc import Mapping, Sequence

from torch_xdist.launcher.facts.host_list import Host

# What a shell ends with that cannot start a program, and ssh after a trouble of its own.
_NOT_STARTED, _SSH_FAILED = (126, 127), 255
# How ssh begins when it speaks of a connection that has ended.
_OWN = ("Connection to ", "Timeout, server ", "client_loop: ", "ssh: ")
_CONNECT_S = 10
_OPTIONS = (
    *("-T", "-x", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
    *("-o", f"ConnectTimeout={_CONNECT_S}"),
    # So that it ends by itself where nobody is left to end it.
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)


class Ssh:
    """A `Way` by ssh.

    Args:
        program: ssh and the user's own options, such as ["ssh", "-F", "config"].
    """

    advice = "install OpenSSH's client, or name yours by --ssh-command"
    kills_all = False
    # A login takes several times the delay of the way, and an interpreter starts there.
    tries_s: Sequence[float] = (5.0, 10.0, 15.0)
    engine = ""

    def __init__(self, program: Sequence[str]) -> None:
        self._program = list(program)

    def prepare(self, hosts: Sequence[Host]) -> None:
        pass

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        port = ["-p", str(host.port)] if host.port else []
        return [*self._program, *_OPTIONS, *port, "--", host.destination, shell_line(words)]

    def environ(self) -> Mapping[str, str] | None:
        return None

    def is_own(self, line: str) -> bool:
        return line.startswith(_OWN)

    def is_news(self, line: str) -> bool:
        return False

    def why_no_python(self, code: int | None, said: Sequence[str]) -> str:
        return said[-1] if code in _NOT_STARTED else ""

    def why_unreached(self, host: Host, code: int | None, said: Sequence[str]) -> str:
        if code != _SSH_FAILED:
            return ""
        return f"ssh cannot reach it: {said[-1]}; try `ssh {host.destination}` by hand"

    def why_lost(self, code: int | None, said: Sequence[str]) -> str:
        return said[-1] if code == _SSH_FAILED else ""


def shell_line(words: Sequence[str]) -> str:
    """For the login shell of a host, which then is no process of its own any more."""
    return f"exec {shlex.join(words)}"

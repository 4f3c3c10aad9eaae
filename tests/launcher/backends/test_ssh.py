"""The ssh backend, without a network: its command, and its words for what goes wrong.

What it does with real servers is in tests/launcher/pods.
"""

import json
import queue
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from torch_xdist.launcher.backends.backend import Plane
from torch_xdist.launcher.backends.over_command import AgentOverCommand, HostsOverCommand
from torch_xdist.launcher.backends.ssh import Ssh
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.host_list import Host

HOST = Host("b", "me", 2222, slots=2)
CONFIG = {"op": "config", "host_index": 1, "beat_s": 1, "lost_s": 5}


def hosts(command: Sequence[str], host: Host = HOST, **env: str) -> HostsOverCommand:
    return HostsOverCommand(Ssh(command), [Host("a", slots=1), host], "/opt/my python", env)


def test_the_command_is_the_users_ssh_with_a_constant_remote_command() -> None:
    *words, remote = hosts(["ssh", "-F", "own"], TOKEN="hush").command(1)
    assert words[:3] == ["ssh", "-F", "own"]
    assert words[-4:] == ["-p", "2222", "--", "me@b"]
    assert {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5"} <= set(words)
    assert remote.startswith("exec '/opt/my python' -P -c 'import json,os,sys;")
    # Characters that some login shell would take for its own, even in single quotes.
    assert not set(remote) & set("!\n\\`")


def test_a_host_without_user_and_port_is_left_to_ssh() -> None:
    words = hosts(["ssh"]).command(0)
    assert "-p" not in words and words[-2] == "a"


class Told:
    """A plane that keeps what the agent said."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[tuple[int, dict, bytes]] = queue.SimpleQueue()
        self.plane = Plane(None, lambda *said: self.heard.put(said))  # type: ignore[arg-type]

    def gone(self) -> str:
        while (message := self.heard.get(timeout=10)[1])["op"] != "gone":
            pass
        return str(message["why"])


@pytest.fixture
def told() -> Iterator[Told]:
    yield Told()


def stand_in(folder: Path, script: str) -> list[str]:
    """An ssh that runs this."""
    path = folder / "ssh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return [str(path)]


def ended(agent: AgentOverCommand, told: Told, *, has_said_hello: bool = False) -> str:
    agent.connect(told.plane, CONFIG, None)
    gone = agent.explain(told.gone(), "b", has_said_hello=has_said_hello)
    agent.end()
    assert gone.exit_code == 73 and gone.is_lost == has_said_hello
    return gone.text


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo Permission denied. >&2; exit 255", "ssh cannot reach it: Permission denied.; try"),
        ("exit 255", "ssh cannot reach it: its stream ended; try `ssh me@b` by hand"),
        ("echo sh: not found >&2; exit 127", "/opt/my python cannot be started there: sh: not fou"),
        ("echo ImportError: x >&2; exit 1", "its agent ended with code 1 before it answered: Impo"),
        ("echo This account is closed", "its agent ended with code 0 before it answered: This ac"),
    ],
)
def test_an_agent_that_does_not_come_is_explained(
    tmp_path: Path, told: Told, script: str, text: str
) -> None:
    agent = hosts(stand_in(tmp_path, script)).start(1, "job", "cold", "M=1")
    assert ended(agent, told).startswith(f"host b: {text}")


def test_an_agent_that_was_there_is_lost_with_its_host(tmp_path: Path, told: Told) -> None:
    agent = hosts(stand_in(tmp_path, "exit 0")).start(1, "job", "cold", "M=1")
    assert ended(agent, told, has_said_hello=True) == "its stream ended"


def test_what_an_agent_is_to_know_comes_on_its_stdin(tmp_path: Path, told: Told) -> None:
    # The remote command is run by this machine's own shell, with this interpreter.
    script = f'for last; do :; done; exec sh -c "$last" > {tmp_path}/out 2>&1'
    way = Ssh(stand_in(tmp_path, script))
    backend = HostsOverCommand(way, [HOST], sys.executable, {"TOKEN": "hush"})
    line = {"env": backend.env, "argv": ["-c", "import os; print(os.environ['TOKEN'])"]}
    first = json.dumps(line).encode() + b"\n"
    ended(AgentOverCommand(way, HOST, backend.command(0), sys.executable, first, {}), told)
    assert (tmp_path / "out").read_text() == "hush\n"


def test_an_ssh_that_is_not_there_is_named() -> None:
    with pytest.raises(HostError, match=r"host b: /no/ssh cannot be started here \(No such file"):
        hosts(["/no/ssh"]).start(1, "job", "cold", "M=1")


def test_an_agent_that_was_never_connected_ends(tmp_path: Path) -> None:
    agent = hosts(stand_in(tmp_path, "exec sleep 100")).start(1, "job", "cold", "M=1")
    assert agent.why_gone() is None and agent.silent_s() == 0.0
    agent.end()
    assert agent._process.ended()


def test_the_first_line_is_json() -> None:
    line = hosts(["ssh"], A="1").first_line(1, "job", "warm", "M=1")
    assert json.loads(line) == {
        "env": {"A": "1"},
        "argv": [
            *("-P", "-m", "torch_xdist.launcher.on_host.agent_over_pipes"),
            *("job", "warm", "M=1.1", "2"),
        ],
    }

"""What an agent behind srun or Ray says, and is told: in TLS, and with patience for a cut link.

The srun here runs its command on this machine, writes down what it carries, and can meddle with it.
"""

import json
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_xdist.launcher import tls
from torch_xdist.launcher.backends import engine_pipes
from torch_xdist.launcher.backends.backend import Plane
from torch_xdist.launcher.backends.engine_pipes import EnginePipes
from torch_xdist.launcher.backends.over_command import AgentOverCommand, HostsOverCommand
from torch_xdist.launcher.backends.slurm.srun import Srun
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.host_list import Host

LIMITS = {"host_index": 0, "beat_s": 0.2, "lost_s": 1.0, "reconnect_s": 4.0}
SRUN = """
import os, subprocess, sys, threading, time
words = sys.argv[sys.argv.index("--nodelist=n2") + 1:]
folder, mode = os.environ["FOLDER"], os.environ["MODE"]
there = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def carry(source, target, name):
    with open(os.path.join(folder, name), "wb", buffering=0) as record:
        while data := os.read(source, 1 << 16):
            record.write(data)
            if mode == "another" and name == "orders" and data.startswith(b"{"):
                before, _, after = data.partition(b'"]')
                data = before[:-4] + b"0000" + b'"]' + after
            if (mode, name) == ("meddle", "news") and os.path.exists(folder + "/now"):
                data = data[:-1] + bytes([data[-1] ^ 1])
            if mode == "silent":
                while os.path.exists(folder + "/now"):
                    time.sleep(0.02)
            os.write(target, data)
    os.close(target)
orders = threading.Thread(target=carry, args=(0, there.stdin.fileno(), "orders"), daemon=True)
orders.start()
carry(there.stdout.fileno(), 1, "news")
sys.exit(there.wait())
"""
AGENT = """
import os, sys, time
from torch_xdist.launcher.on_host.head_stream import PipesToHead
def obey(message, blob):
    if message["op"] == "lost":
        os._exit(0)
    stream.send({"op": "echo", "text": message["text"]})
head = PipesToHead.as_told(sys.argv[5:])
stream = head.open(head.config().message, {"token": os.environ.get("TOKEN")}, obey)
time.sleep(60)
"""


class Job:
    """One agent behind that srun, and what is heard of it."""

    def __init__(self, folder: Path, mode: str) -> None:
        (folder / "srun.py").write_text(SRUN)
        (folder / "the_agent.py").write_text(AGENT)
        self.folder = folder
        self.notes: list[str] = []
        self.heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        way = Srun(
            [sys.executable, str(folder / "srun.py")],
            {**os.environ, "FOLDER": str(folder), "MODE": mode},
        )
        env = {"TOKEN": "hush-hush", "PYTHONPATH": str(folder)}
        hosts = HostsOverCommand(
            *(way, [Host("n2", slots=2)], sys.executable, env, "the_agent"), note=self.notes.append
        )
        plane = Plane(None, lambda _, message, __: self.heard.put(dict(message)))  # type: ignore[arg-type]
        self.agent: AgentOverCommand = hosts.start(0, "job", "cold", "M=1")
        self.send = self.agent.connect(plane, {"op": "config", **LIMITS}, None)

    def next(self) -> dict[str, Any]:
        return self.heard.get(timeout=20)

    def record(self) -> bytes:
        """All that was carried so far, both ways."""
        return b"".join((self.folder / name).read_bytes() for name in ("orders", "news"))


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    jobs: list[Job] = []

    def started(mode: str = "") -> Job:
        jobs.append(Job(tmp_path, mode))
        return jobs[-1]

    yield started
    for job in jobs:
        job.agent.end(0.5)


def test_nothing_that_is_said_can_be_read_along(begin: Callable) -> None:
    job = begin()
    assert job.next()["token"] == "hush-hush"
    job.send({"op": "say", "text": "another word"})
    assert job.next() == {"op": "echo", "text": "another word"}
    first, _, rest = job.record().partition(b"\n")
    told = json.loads(first)
    assert set(told["env"]) == {"PYTHONPATH"} and len(bytes.fromhex(told["argv"][-1])) == 32
    assert not any(word in rest for word in (b"hush", b"config", b"beat_s", b"another", b"echo"))
    assert job.notes == []


def test_where_no_key_pair_is_made_it_is_said_that_all_is_as_private_as_the_cluster(
    begin: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> bytes:
        raise HostError("there is no openssl here to make a key pair with")

    monkeypatch.setattr(tls, "_made", none)
    job = begin()
    assert job.next()["token"] == "hush-hush"
    assert job.notes == [
        "warning: there is no openssl here to make a key pair with; what srun carries is as "
        "private as the network of the cluster, not encrypted"
    ]
    assert b"hush-hush" in job.record()


def test_an_agent_takes_no_certificate_but_the_one_that_was_announced(begin: Callable) -> None:
    job = begin("another")
    while (message := job.next())["op"] != "gone":
        assert message["op"] == "note"
    gone = job.agent.explain(message["why"], "n2", has_said_hello=False)
    assert gone.text == (
        "host n2: its agent ended with code 1 before it answered: no way to xla-run: it is not the "
        "certificate of this job; somebody on the way has put in his own; torch-xdist must be "
        "installed there as here"
    )


def test_a_byte_that_was_changed_on_the_way_ends_the_stream(begin: Callable) -> None:
    job = begin("meddle")
    assert job.next()["token"] == "hush-hush"
    (job.folder / "now").touch()
    assert "a record without the seal of this connection" in job.next()["why"]


def test_a_silence_is_waited_for_as_long_as_a_new_connection_elsewhere(begin: Callable) -> None:
    job = begin("silent")
    assert job.next()["token"] == "hush-hush"
    (job.folder / "now").touch()
    time.sleep(2.6)  # more than `lost_s`, and than half of what is waited for
    (job.folder / "now").unlink()
    job.send({"op": "say", "text": "here again"})
    assert job.next() == {"op": "echo", "text": "here again"}
    assert job.notes == ["host n2: no word from it for 2 s, waiting up to 4 s for one"]


def test_a_silence_beyond_that_is_the_end(begin: Callable) -> None:
    job = begin("silent")
    assert job.next()["token"] == "hush-hush"
    (job.folder / "now").touch()
    began_s = time.monotonic()
    assert job.next() == {"op": "gone", "why": "no word from it for 4 s"}
    assert time.monotonic() - began_s < 10
    (job.folder / "now").unlink()


@pytest.mark.parametrize(("within_s", "limit_s"), [(4.0, 4.0), (0.0, 1.0), (float("inf"), 1.0)])
def test_the_longer_limit_holds_unless_it_is_none(
    within_s: float, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pipes, "key_pair", lambda *_: None)
    pipes = EnginePipes("srun", lambda _: None)
    assert pipes.lost_s({"lost_s": 1.0, "reconnect_s": within_s}) == limit_s

"""`xla-run check --nnodes`, typed once for each node: all of them on this machine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from marked_processes import none_left
from node_jobs import SECRET

from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.preflight import checked_nodes

LIMIT_S = 40


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable]:
    """`node(1, "--limit", "30")`: a check as one node; nothing of any may be left."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with none_left("nodes") as (mark, started):

        def begin(
            rank: int, *words: str, secret: str = SECRET, nodes: int = 2, folder: Path = tmp_path
        ) -> subprocess.Popen:
            name, _, value = mark.partition("=")
            where = ("--master-addr", "127.0.0.1", "--master-port", port, "--node-rank", str(rank))
            command = (
                sys.executable,
                "-m",
                "torch_xdist.launcher",
                "check",
                "--nnodes",
                str(nodes),
            )
            process = subprocess.Popen(
                [*command, *where, "--limit", str(LIMIT_S), *words],
                cwd=folder, env={**os.environ, "XLA_RUN_SECRET": secret, name: value},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            started.append(process)
            return process

        yield begin


def ended(process: subprocess.Popen, limit_s: float = 80) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=limit_s)
    return process.returncode, out, err


def told(process: subprocess.Popen, what: str) -> None:
    """Wait until it says a line with this on stderr."""
    for line in process.stderr:
        if what in line:
            return
    raise AssertionError(f"it never said {what!r}")


def test_node_0_shows_the_table_of_all_and_the_others_end_as_it_does(
    node: Callable, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print()")
    words = ("-n", "2", sys.executable, "train.py", "7")
    head, other = node(0, *words), node(1, *words)
    code, out, err = ended(head)
    assert (code, err) == (0, "")
    title, first, second, *_, last = out.splitlines()
    assert title.split()[:3] == ["HOST", "LOGIN", "PYTHON"] and "NET" in title
    machine = re.escape(socket.gethostname())
    assert re.match(rf"node0 on {machine} .* 1 file ", first)
    assert re.match(rf"node1 on {machine} .* 1 file .*B/s", second)
    assert last == "a job can run on 2 hosts"
    code, out, err = ended(other)
    assert (code, out) == (0, "")
    assert re.search(r"^node 1 of 2 is checked by node 0 at 127.0.0.1:\d+$", err, re.M)
    assert err.splitlines()[-1].endswith(": a job can run on 2 hosts")


def test_all_nodes_end_with_the_code_of_what_is_wrong_on_one(
    node: Callable, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(f"print({folder.name!r})")
    words = ("-n", "2", sys.executable, "train.py")
    head, other = (node(rank, *words, folder=folders[rank]) for rank in (0, 1))
    (code, out, _), (its_code, _, its_err) = ended(head), ended(other)
    assert code == its_code == 71
    assert re.search(r"host node1 on \S+: train.py is another one there \(", out)
    last = "no job can run on 2 hosts: 1 error"
    assert out.splitlines()[-1] == last and its_err.splitlines()[-1].endswith(f": {last}")


def test_a_node_that_does_not_come_is_named_and_the_others_are_looked_at(node: Callable) -> None:
    words = ("--rendezvous-timeout", "4")
    head, other = node(0, *words, nodes=3), node(1, *words, nodes=3)
    code, out, _ = ended(head)
    assert code == 73
    lines = out.splitlines()
    assert lines[2].startswith("node1 on ") and lines[3].split()[:2] == ["node2", "!failed"]
    assert "host node2: it did not come to 127.0.0.1:" in out
    assert " within 4 s; start the same command there with --node-rank 2, see that a" in out
    assert ended(other)[0] == 73


def test_a_node_with_another_secret_is_sent_away_and_changes_nothing(node: Callable) -> None:
    head = node(0)
    code, _, err = ended(node(1, secret="0f" * 32))
    assert code == 73 and "it refuses this node: XLA_RUN_SECRET is another one there" in err
    assert ended(node(1))[0] == 0
    code, out, err = ended(head)
    assert code == 0 and out.splitlines()[-1] == "a job can run on 2 hosts"
    assert "warning: a connection from 127.0.0.1 was refused: it does not know the secret" in err


def test_a_second_node_of_one_number_and_another_command_are_refused(node: Callable) -> None:
    head, first = node(0, nodes=3), node(1, nodes=3)
    told(first, "is checked by")
    code, _, err = ended(node(1, nodes=3))
    assert code == 74 and "node 1 is there already (" in err
    code, _, err = ended(node(2, sys.executable, "-c", "pass", nodes=3))
    assert code == 2 and "and node 0 runs no command; start the same command on all nodes" in err
    assert ended(node(2, nodes=3))[0] == ended(first)[0] == ended(head)[0] == 0


def test_a_node_ends_soon_after_node_0_was_killed(node: Callable) -> None:
    head, other = node(0, nodes=3), node(1, nodes=3)
    told(other, "is checked by")
    head.kill()
    since_s = time.monotonic()
    code, _, err = ended(other)
    assert code == 73 and "was lost: its stream ended" in err and time.monotonic() - since_s < 30


def test_ctrl_c_on_node_0_ends_the_check_on_all_nodes(node: Callable) -> None:
    head, other = node(0, nodes=3), node(1, nodes=3)
    told(other, "is checked by")
    head.send_signal(signal.SIGINT)
    assert ended(head)[0] == 130
    code, _, err = ended(other)
    assert code == 130 and err.strip().endswith("node 0 was told to stop")


def test_a_node_that_leaves_before_all_are_there_may_come_again(node: Callable) -> None:
    head, first = node(0, nodes=3), node(1, nodes=3)
    told(first, "is checked by")
    first.send_signal(signal.SIGINT)
    assert ended(first)[0] == 130
    told(head, "is gone again: its stream ended")
    others = [node(rank, nodes=3) for rank in (1, 2)]
    assert [ended(one)[0] for one in others] == [0, 0] and ended(head)[0] == 0


def test_node_0_that_is_not_there_is_named(node: Callable) -> None:
    code, _, err = ended(node(1, "--rendezvous-timeout", "1"))
    assert code == 72 and "was not there in 1 s: connection refused; start it" in err


def test_nodes_without_a_secret_are_refused(node: Callable) -> None:
    code, _, err = ended(node(0, secret=""))
    assert code == 2 and "XLA_RUN_SECRET: it is not set" in err


def test_everything_that_nodes_found_is_there_as_json(node: Callable) -> None:
    head, _ = node(0, "--json", "--no-bandwidth"), node(1)
    found = json.loads(ended(head)[1])
    names = [host["name"].split()[0] for host in found["hosts"]]
    assert names == ["node0", "node1"] and found["ok"]
    assert found["hosts"][1]["facts"]["versions"]["torch"]


def test_of_nodes_that_may_be_fewer_those_are_looked_at_that_come(node: Callable) -> None:
    """Node 2 comes and node 1 does not: numbers and places in the table differ."""
    words = ("--nnodes", "1:3", "--rendezvous-timeout", "4", "--no-bandwidth")
    head, other = node(0, *words), node(2, *words)
    code, out, err = ended(head)
    assert code == 0, out + err
    assert re.search(r"^warning: node1 did not come to 127.0.0.1:\d+; a job can begin with 1 of 3 "
                     r"nodes, and the 2 that are here are looked at$", err, re.M)  # fmt: skip
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["node0", "node2"]
    assert lines[-1] == "a job can run on 2 hosts" and ended(other)[0] == 0


@pytest.mark.long
def test_too_few_nodes_are_an_error_with_the_name_of_each(node: Callable) -> None:
    words = ("--nnodes", "2:3", "--rendezvous-timeout", "2", "--no-bandwidth")
    code, out, _ = ended(node(0, *words))
    assert code == 73 and "host node1: it did not come" in out and "host node2: it did not" in out


def test_a_node_of_a_range_is_waited_for_as_long_as_a_job_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job("program", [], 3, hosts=[Host(f"node{n}") for n in range(3)], least_hosts=2)
    job = replace(job, way_command=["127.0.0.1", "0"], elastic_wait_s=0.2)
    monkeypatch.setattr(checked_nodes, "Door", lambda *_: None)
    nodes = checked_nodes.CheckedNodes(job, b"x" * 32, lambda _: None)
    nodes._links[2] = SimpleNamespace(machine="m")  # type: ignore[assignment]
    began_s = time.monotonic()
    assert [host.name for host in nodes.gather(lambda *_: None)][1:] == ["node2 on m"]
    assert 0.2 <= time.monotonic() - began_s < 40

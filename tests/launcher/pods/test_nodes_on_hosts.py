"""`xla-run --nnodes` on two hosts with addresses of their own, typed on each of them."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pod import ROOT, Pod

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.system import process_tree

PORT = "29401"
WAITS = "say('on%d' % RANK); time.sleep(200)"
FACTS = """
    import json, socket
    import torch, torch_xla, torch_xla.core.xla_model as xm
    told = [socket.gethostname(), os.environ["MASTER_ADDR"], os.environ["GROUP_RANK"]]
    say("rank%d" % RANK, json.dumps(told))
    print("sum", xm.all_reduce("sum", torch.ones(1, device="xla")).item())
"""


class TwoHosts:
    """Starts nodes on the hosts of a pod; node 0 is to be on host a. All write into one folder."""

    def __init__(self, start: Callable, pod: Pod, folder: Path) -> None:
        self._start, self._pod, self.folder = start, pod, folder
        self.address = pod.hosts["a"].address

    def on(self, name: str, rank: int, body: str, *options: str) -> Any:
        """Start a node on a host."""
        (first,) = process_tree.children(self._pod.hosts[name]._process.pid)
        inside = ("nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p")
        where = ("--master-addr", self.address, "--master-port", PORT)
        words = ("--nnodes", "2", "--node-rank", str(rank), *where, "-n", "2", *options)
        env = {"FOLDER": str(self.folder), "XLA_RUN_SECRET": "5e" * 32}
        before = (*inside, "--", "env", "-C", str(self.folder))
        return self._start(body, *words, env=env, before=before)

    def both(self, body: str, *options: str) -> tuple[Any, Any]:
        return self.on("a", 0, body, *options), self.on("b", 1, body, *options)


@pytest.fixture
def two_hosts(start: Callable, pod: Pod, tmp_path: Path) -> TwoHosts:
    folder = tmp_path / "shared"
    folder.mkdir()
    return TwoHosts(start, pod, folder)


def running(two_hosts: TwoHosts, *options: str) -> tuple[Any, Any]:
    jobs = two_hosts.both(WAITS, *options)
    end_s = time.monotonic() + 60
    while not all((two_hosts.folder / f"on{rank}").exists() for rank in range(4)):
        assert time.monotonic() < end_s, "\n".join(job.texts() for job in jobs)
        time.sleep(0.05)
    return jobs


def test_ranks_of_nodes_meet_at_the_address_of_node_0(two_hosts: TwoHosts, pod: Pod) -> None:
    jobs = two_hosts.both(FACTS)
    head, node = (job.end() for job in jobs)
    assert (head.code, node.code) == (0, 0), head.err + node.err
    told = [json.loads((two_hosts.folder / f"rank{rank}").read_text()) for rank in range(4)]
    address = pod.hosts["a"].address
    assert told == [["a", address, "0"]] * 2 + [["b", address, "1"]] * 2
    assert sorted(line for line in head.out.splitlines() if "sum" in line) == [
        *("[node0/0] sum 4.0", "[node0/1] sum 4.0", "[node1/2] sum 4.0", "[node1/3] sum 4.0"),
    ]


def test_a_cut_between_nodes_ends_the_ranks_of_both_sides(two_hosts: TwoHosts, pod: Pod) -> None:
    head, node = running(two_hosts, "--lost-after", "3", "--beat-every", "0.5")
    pod.hosts["b"].cut()
    since_s = time.monotonic()
    ended = [job.end(limit_s=12) for job in (head, node)]
    assert time.monotonic() - since_s < 12
    assert [one.code for one in ended] == [ExitCode.HOST, ExitCode.HOST]
    assert "host node1 on b (ranks 2, 3) was lost: no word from it for 3 s" in ended[0].err
    assert f"{pod.hosts['a'].address}:{PORT} was lost: no word from it for 3 s" in ended[1].err


def test_a_second_node_0_is_told_that_there_is_one(two_hosts: TwoHosts) -> None:
    first = two_hosts.on("a", 0, WAITS, "--notice-after", "0.5")
    end_s = time.monotonic() + 30
    while "(host node1: not yet at" not in first.texts():
        assert time.monotonic() < end_s, first.texts()
        time.sleep(0.05)
    ended = two_hosts.on("b", 0, WAITS).end(limit_s=20)
    assert ended.code == ExitCode.DUPLICATE
    where = f"{two_hosts.address}:{PORT}"
    assert f"xla-run: node 0 is there already, at {where}; give every node its" in ended.err


def test_the_host_of_a_node_that_is_killed_is_lost(two_hosts: TwoHosts, pod: Pod) -> None:
    head, _ = running(two_hosts)
    pod.hosts["b"].kill()
    ended = head.end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert "host node1 on b (ranks 2, 3) was lost: its stream ended" in ended.err


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nodes_train_to_the_same_losses_as_hosts(two_hosts: TwoHosts, on_hosts: Callable) -> None:
    body = f"""
        import runpy
        sys.argv = ["digits", "--epochs", "2", "--batch-size", "64", "--out", FOLDER + "/digits"]
        runpy.run_path({str(ROOT / "scripts/train_digits.py")!r}, run_name="__main__")
    """
    told = []
    for jobs in (two_hosts.both(body), (on_hosts(body, "--hosts", "a,b", "-n", "2"),)):
        ended = [job.end(limit_s=280) for job in jobs]
        assert all(one.code == 0 for one in ended), ended[0].err
        of_first = "\n".join(re.findall(r"^\[(?:a|node0)/0\](.*)$", ended[0].out, re.MULTILINE))
        losses, shares = (re.findall(what, of_first) for what in (r"loss=([\d.]+)", r"y ([\d.]+)%"))
        told.append((losses[-1], shares[-1]))
    assert told[0] == told[1]

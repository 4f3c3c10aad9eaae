"""Jobs on two hosts between which there is no IPv4."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pod import Pod
from pod_nodes import PORT, TwoHosts

FACTS = """
    import json
    import torch, torch_xla, torch_xla.core.xla_model as xm
    say("rank%d" % RANK, json.dumps(os.environ["MASTER_ADDR"]))
    print("sum", xm.all_reduce("sum", torch.ones(1, device="xla")).item())
    assert xm.mesh_reduce("ranks", RANK, sum) == 6
"""

SOON = ("--lost-after", "2", "--beat-every", "0.5")
GOES_ON = """
    import torch, torch_xla, torch_xla.core.xla_model as xm
    for step in range(160):
        total = xm.all_reduce("sum", torch.ones(1, device="xla")).item()
        if step == 3:
            say("on%d" % RANK)
        time.sleep(0.05)
    print("last", total)
"""

# Without a launcher, on each host by itself.
SCRIPT = """
import torch, torch_xla, torch_xla.core.xla_model as xm
from torch_xdist.launcher.ways_in.spawn import spawn
def work(rank):
    return xm.all_reduce("sum", torch.full((1,), rank + 1.0, device="xla")).item()
if __name__ == "__main__":
    print("results", spawn(work, nprocs=2))
"""


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    shared = tmp_path_factory.getbasetemp()
    with Pod(tmp_path_factory.mktemp("pod"), shared, is_ipv6=True) as made:
        yield made


def cut_for_a_while(pod: Pod) -> None:
    """Longer than a connection is waited for, and shorter than a host is."""
    pod.hosts["b"].cut()
    time.sleep(5)
    pod.hosts["b"].mend()


def told(folder: Path) -> set[str]:
    return {json.loads((folder / f"rank{rank}").read_text()) for rank in range(4)}


@pytest.mark.long
def test_nodes_come_and_their_ranks_meet(start: Callable, pod: Pod, tmp_path: Path) -> None:
    hosts = TwoHosts(start, pod, tmp_path / "shared")
    head, node = (job.end() for job in hosts.both(FACTS))
    assert (head.code, node.code) == (0, 0), head.err + node.err
    assert head.out.count("sum 4.0") == 4 and told(hosts.folder) == {pod.hosts["a"].address}
    assert f"of node 0 at [{pod.hosts['a'].address}]:{PORT}" in node.err


def test_hosts_over_ssh_meet(start: Callable, pod: Pod, tmp_path: Path) -> None:
    own = ("--ssh-command", pod.ssh, "--env", "FOLDER", "--env", "XLA_RUN_TEST")
    (tmp_path / "shared").mkdir()
    env = {"FOLDER": str(tmp_path / "shared")}
    ended = start(FACTS, "--hosts", "a,b", "-n", "2", *own, env=env).end()
    assert ended.code == 0 and ended.out.count("sum 4.0") == 4, ended.err
    assert told(tmp_path / "shared") == {pod.hosts["a"].address}


@pytest.mark.long
@pytest.mark.parametrize("transport", ["mesh", "gloo"])
def test_ranks_exchange_over_every_transport(
    start: Callable, pod: Pod, tmp_path: Path, transport: str
) -> None:
    own = ("--ssh-command", pod.ssh, "--env", "FOLDER", "--env", "XLA_RUN_TEST")
    (tmp_path / "shared").mkdir()
    env = {"FOLDER": str(tmp_path / "shared"), "XDIST_TRANSPORT": transport}
    ended = start(FACTS, "--hosts", "a,b", "-n", "2", *own, env=env).end()
    assert ended.code == 0 and ended.out.count("sum 4.0") == 4, ended.err


@pytest.mark.long
def test_scripts_that_nobody_leads_meet(start: Callable, pod: Pod) -> None:
    hosts = list(pod.hosts.values())
    names = ",".join(host.address for host in hosts)
    listed = ("TPU_WORKER_HOSTNAMES=" + names, "XLA_RUN_HOSTS=2", "FOLDER=/tmp")
    jobs = [
        start(SCRIPT, before=(*pod.ssh.split(), host.name, "env", "PJRT_DEVICE=CPU", *listed,
                              f"TPU_WORKER_ID={number}"))
        for number, host in enumerate(hosts)
    ]  # fmt: skip
    ended = [job.end() for job in jobs]
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    assert [one.out for one in ended] == ["results [10.0, 10.0]\n"] * 2


@pytest.mark.long
def test_nodes_go_on_after_a_cut_of_the_link(start: Callable, pod: Pod, tmp_path: Path) -> None:
    hosts = TwoHosts(start, pod, tmp_path / "shared")
    jobs = hosts.running(*SOON, body=GOES_ON)
    cut_for_a_while(pod)
    head, node = (job.end() for job in jobs)
    assert (head.code, node.code) == (0, 0), head.err + node.err
    assert head.out.count("last 4.0") == 4
    assert re.search(r"^node1 on b is back after \d+\.\d s$", head.err, re.M), head.err
    assert f"node 0 at [{pod.hosts['a'].address}]:{PORT} is back after " in node.err


@pytest.mark.long
def test_hosts_over_ssh_go_on_after_a_cut_of_the_link(
    start: Callable, pod: Pod, tmp_path: Path
) -> None:
    own = ("--ssh-command", pod.ssh, "--env", "FOLDER", "--env", "XLA_RUN_TEST", *SOON)
    job = start(GOES_ON, "--hosts", "a,b", "-n", "2", *own)
    for rank in range(4):
        job.wait_for(f"on{rank}")
    cut_for_a_while(pod)
    ended = job.end()
    assert ended.code == 0 and ended.out.count("last 4.0") == 4, ended.err
    assert "host b is back after " in ended.err


@pytest.mark.long
def test_a_link_that_stays_down_ends_both_nodes(start: Callable, pod: Pod, tmp_path: Path) -> None:
    hosts = TwoHosts(start, pod, tmp_path / "shared")
    jobs = hosts.running(*SOON, "--reconnect-within", "6")
    pod.hosts["b"].cut()
    try:
        ended = [job.end(limit_s=20) for job in jobs]
    finally:
        pod.hosts["b"].mend()
    assert [one.code for one in ended] == [73, 73], [one.err for one in ended]
    assert "host node1 on b (ranks 2, 3) was lost: no word from it for 2 s" in ended[0].err


def test_a_check_finds_the_ways_between_them(pod: Pod, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_xdist.launcher", "check", "--hosts", "a,b", "--limit", "40",
         "--ssh-command", pod.ssh],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "B/s" in done.stdout.splitlines()[2]

"""`xla-run --nnodes` on two hosts with addresses of their own, typed on each of them."""

import json
import time
from collections.abc import Callable

import pytest
from digits_job import BODY as DIGITS
from digits_job import last_loss_and_share
from node_jobs import WAITS
from pod import Pod
from pod_nodes import PORT, TwoHosts

from torch_xdist.launcher.facts.errors import ExitCode

CUT = ("--lost-after", "3", "--beat-every", "0.5", "--reconnect-within", "0")
FACTS = """
    import json, socket
    import torch, torch_xla, torch_xla.core.xla_model as xm
    told = [socket.gethostname(), os.environ["MASTER_ADDR"], os.environ["GROUP_RANK"]]
    say("rank%d" % RANK, json.dumps(told))
    print("sum", xm.all_reduce("sum", torch.ones(1, device="xla")).item())
"""


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
    head, node = two_hosts.running(*CUT)
    pod.hosts["b"].cut()
    since_s = time.monotonic()
    ended = [job.end(limit_s=12) for job in (head, node)]
    assert time.monotonic() - since_s < 24
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
    head, _ = two_hosts.running()
    pod.hosts["b"].kill()
    ended = head.end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert "host node1 on b (ranks 2, 3) was lost: its stream ended" in ended.err


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nodes_train_to_the_same_losses_as_hosts(two_hosts: TwoHosts, on_hosts: Callable) -> None:
    told = []
    for jobs in (two_hosts.both(DIGITS), (on_hosts(DIGITS, "--hosts", "a,b", "-n", "2"),)):
        ended = [job.end(limit_s=280) for job in jobs]
        assert all(one.code == 0 for one in ended), ended[0].err
        told.append(last_loss_and_share(ended[0].out, "(?:a|node0)/0"))
    assert told[0] == told[1]

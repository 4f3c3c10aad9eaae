"""The link between two hosts is down for a while, in one direction, or slow: the job goes on over
another connection, or each side ends what it has within its limit.

The nodes of `xla-run --nnodes` stand for all: node 0 is on host a, and leads.
"""

import re
import time
from typing import Any

import pytest
import slow_link
from pod import Pod
from pod_nodes import TwoHosts

from torch_xdist.launcher.facts.errors import ExitCode

SOON = ("--lost-after", "2", "--beat-every", "0.5")
# The same on all machines, so that two runs may be compared to the last digit.
TRAINS = """
    import torch, torch_xla, torch_xla.core.xla_model as xm
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(60):
        batch = torch.sin(torch.arange(64.0) * (step + RANK + 1)).reshape(8, 8).to("xla")
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(optimizer)
        print("loss", step, loss.item(), flush=True)
        if step == 10:
            say("on%d" % RANK)
        time.sleep(0.05)
"""


def losses(out: str) -> list[tuple[str, ...]]:
    return sorted(re.findall(r"/(\d)\] loss (\d+) (\S+)$", out, re.M))


def both_end(*jobs: Any, limit_s: float = 120) -> list[Any]:
    ended = [job.end(limit_s=limit_s) for job in jobs]
    assert [one.code for one in ended] == [0, 0], "\n".join(one.err for one in ended)
    return ended


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[str, ...]]:
    """The losses of a run without a fault; filled by the first test that needs them."""
    return []


def expected(two_hosts: TwoHosts, found: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    if not found:
        head, _ = both_end(*two_hosts.both(TRAINS))
        found += losses(head.out)
        for path in two_hosts.folder.glob("on*"):
            path.unlink()
    assert len(found) == 4 * 60
    return found


@pytest.mark.parametrize("name", ["a", pytest.param("b", marks=pytest.mark.long)])
def test_a_link_that_is_down_for_a_while_changes_no_loss(
    two_hosts: TwoHosts, pod: Pod, undisturbed: list, name: str
) -> None:
    wanted = expected(two_hosts, undisturbed)
    jobs = two_hosts.running(*SOON, body=TRAINS)
    pod.hosts[name].cut()
    time.sleep(5)
    pod.hosts[name].mend()
    head, node = both_end(*jobs)
    assert losses(head.out) == wanted
    assert "connection to node1 on b lost (no word from it for 2 s), waiting up to 28 s" in head.err
    assert re.search(r"^node1 on b is back after \d+\.\d s$", head.err, re.M), head.err
    assert re.search(r"^node 0 at \S+ is back after \d+\.\d s$", node.err, re.M), node.err


def test_a_link_that_stays_down_ends_both_sides_in_time(two_hosts: TwoHosts, pod: Pod) -> None:
    jobs = two_hosts.running(*SOON, "--reconnect-within", "6")
    pod.hosts["b"].cut()
    since_s = time.monotonic()
    ended = [job.end(limit_s=14) for job in jobs]
    assert 5 < time.monotonic() - since_s < 28
    assert [one.code for one in ended] == [ExitCode.HOST, ExitCode.HOST]
    why = "no word from it for 2 s, and there was no new connection for 4 s"
    assert f"xla-run: host node1 on b (ranks 2, 3) was lost: {why}" in ended[0].err
    assert f":{two_hosts.port} was lost: {why}" in ended[1].err


@pytest.mark.parametrize("names", ["ab", pytest.param("ba", marks=pytest.mark.long)])
def test_a_way_that_is_cut_in_one_direction_ends_both_sides_in_time(
    two_hosts: TwoHosts, pod: Pod, names: str
) -> None:
    jobs = two_hosts.running(*SOON, "--reconnect-within", "6")
    first, second = (pod.hosts[name] for name in names)
    first.misses(second)
    since_s = time.monotonic()
    ended = [job.end(limit_s=18) for job in jobs]
    assert time.monotonic() - since_s < 36
    assert [one.code for one in ended] == [ExitCode.HOST, ExitCode.HOST]
    assert "xla-run: host node1 on b (ranks 2, 3) was lost: " in ended[0].err
    assert f":{two_hosts.port} was lost: " in ended[1].err


@pytest.mark.parametrize("names", ["ab", pytest.param("ba", marks=pytest.mark.long)])
def test_a_way_that_was_cut_in_one_direction_for_a_while_is_no_loss(
    two_hosts: TwoHosts, pod: Pod, names: str
) -> None:
    body = "say('on%d' % RANK); time.sleep(9); print('done', RANK)"
    jobs = two_hosts.running(*SOON, body=body)
    first, second = (pod.hosts[name] for name in names)
    first.misses(second)
    time.sleep(5)
    first.finds(second)
    head, _ = both_end(*jobs, limit_s=40)
    assert head.out.count("done") == 4


def test_hosts_whose_clocks_differ_work_together(two_hosts: TwoHosts, pod: Pod) -> None:
    """A namespace may have a monotonic clock of its own; the time of day is one for all here."""
    body = "say('on%d' % RANK, str(time.monotonic())); time.sleep(6); print('done', RANK)"
    clock = ("unshare", "--time", "--monotonic", "86400", "--fork")
    jobs = two_hosts.on("a", 0, body, *SOON), two_hosts.on("b", 1, body, *SOON, before=clock)
    head, _ = both_end(*jobs, limit_s=60)
    assert head.out.count("done") == 4 and "lost" not in head.err
    clocks = [float((two_hosts.folder / f"on{rank}").read_text()) for rank in range(4)]
    assert clocks[2] - clocks[0] > 80_000


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_slow_link_that_loses_packets_ends_no_job(
    two_hosts: TwoHosts, pod: Pod, undisturbed: list
) -> None:
    """300 ms there and back, 1 % of the frames lost each way."""
    if why := slow_link.missing():
        pytest.skip(why)
    wanted = [one for one in expected(two_hosts, undisturbed) if int(one[1]) < 15]
    with pod.hosts["b"].slow(0.15, 0.01) as link:
        jobs = two_hosts.both(TRAINS.replace("range(60)", "range(15)"))
        head, _ = both_end(*jobs, limit_s=280)
    assert losses(head.out) == wanted
    assert link.lost > 5 and "lost" not in head.err

"""A script that is started by itself on each of two hosts: whose ranks meet, what a cut does."""

import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pod import Pod
from processes import kill_marked

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.system import process_tree

SCRIPT = """
import torch, torch_xla, torch_xla.core.xla_model as xm
from torch_xdist.launcher.ways_in.spawn import spawn
def work(rank):
    {body}
if __name__ == "__main__":
    print("results", spawn(work, nprocs=2))
"""
REDUCES = "return xm.all_reduce('sum', torch.full((1,), rank + 1.0, device='xla')).item()"
STEPS = """total = torch.zeros(1, device="xla")
    for step in range(10_000):
        total = xm.all_reduce("sum", total + 1)
        torch_xla.sync()
        if step == 3:
            say("on%d" % rank)
        time.sleep(0.05)
"""


class Slice:
    """The script on both hosts of a pod, each started over ssh by itself."""

    def __init__(self, start: Callable, pod: Pod, body: str) -> None:
        self.mark = f"XLA_RUN_SLICE_TEST={uuid.uuid4().hex}"
        self.jobs: list[Any] = []
        hosts = list(pod.hosts.values())
        names = ",".join(host.address for host in hosts)
        for index, host in enumerate(hosts):
            folder = str(pod.folder.parent)
            environ = [
                *(self.mark, "PJRT_DEVICE=CPU", "XLA_RUN_HOSTS=2", f"TPU_WORKER_ID={index}"),
                *(f"TPU_WORKER_HOSTNAMES={names}", f"FOLDER={folder}/{self.mark[-8:]}"),
            ]
            words = ["mkdir", "-p", f"{folder}/{self.mark[-8:]}", "&&", "env", *environ]
            before = (*shlex.split(pod.ssh), host.name, *words)
            self.jobs.append(start(SCRIPT.format(body=body), before=before))
        self.folder = pod.folder.parent / self.mark[-8:]

    def wait_for(self, name: str, limit_s: float = 90.0) -> None:
        end_s = time.monotonic() + limit_s
        while not (self.folder / name).exists():
            assert time.monotonic() < end_s, [job.texts() for job in self.jobs]
            time.sleep(0.05)

    def is_gone(self, limit_s: float) -> bool:
        end_s = time.monotonic() + limit_s
        while process_tree.marked(self.mark):
            if time.monotonic() > end_s:
                return False
            time.sleep(0.05)
        return True


@pytest.fixture
def on_both(start: Callable, pod: Pod) -> Iterator[Callable[[str], Slice]]:
    made: list[Slice] = []

    def begin(body: str) -> Slice:
        made.append(Slice(start, pod, body))
        return made[-1]

    yield begin
    for one in made:
        kill_marked(one.mark)


@pytest.mark.long
def test_scripts_that_nobody_leads_reduce_together_over_the_network(on_both: Callable) -> None:
    ended = [job.end(120) for job in on_both(REDUCES).jobs]
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    assert all("results [10.0, 10.0]" in one.out for one in ended)


@pytest.mark.long
def test_scripts_that_nobody_leads_end_on_both_sides_of_a_cut(on_both: Callable, pod: Pod) -> None:
    both = on_both(STEPS)
    for rank in range(4):
        both.wait_for(f"on{rank}")
    # Only b's own end of the bridge: the ssh to a goes on.
    pod.hosts["b"].cut()
    since_s = time.monotonic()
    ended = both.jobs[0].end(20)
    assert time.monotonic() - since_s < 40
    assert ended.code == ExitCode.HOST, ended.err
    name = f"host {pod.hosts['b'].address} (worker 1), ranks 2, 3,"
    assert f"{name} was lost: no word from it for 10 s" in ended.err
    assert both.is_gone(10.0), process_tree.marked(both.mark)

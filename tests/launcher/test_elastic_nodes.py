"""`xla-run --nnodes MIN:MAX` with real processes: one on each "node", all on this machine.

Times are measured from outside, and afterwards nothing of any node is alive.
"""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_jobs import Nodes, shown

from torch_xdist.launcher.facts.errors import ExitCode

# Each attempt waits until it is told to end, as one that is lost does not.
WAITS = """
    attempt = os.environ["XLA_RUN_ATTEMPT"]
    print("attempt", attempt, "world", os.environ["WORLD_SIZE"])
    say("on%s-%d" % (attempt, RANK))
    while not os.path.exists(os.path.join(FOLDER, "go")):
        time.sleep(0.02)
        if os.path.exists(os.path.join(FOLDER, "fail" + attempt)):
            sys.exit(1)
"""
QUICK = ("--elastic-wait", "2", "--lost-after", "4", "--beat-every", "1")
QUICK += ("--reconnect-within", "4")


class Elastic(Nodes):
    """Starts nodes of a job that goes on with one of two."""

    def begin(self, rank: int, *options: str, nnodes: str = "1:2") -> Any:
        return self.node(rank, WAITS, *QUICK, *options, nnodes=nnodes)

    def on(self, attempt: int, ranks: int, *jobs: Any) -> None:
        """Wait until the ranks of an attempt are all at work."""
        for rank in range(ranks):
            self.wait_for(f"on{attempt}-{rank}", jobs)

    def tell(self, name: str) -> None:
        (self.folder / name).touch()


@pytest.fixture
def elastic(start: Callable, tmp_path: Path) -> Elastic:
    folder = tmp_path / "shared"
    folder.mkdir()
    return Elastic(start, folder)


def killed(job: Any) -> None:
    job.process.kill()
    job.process.wait()


def test_a_job_goes_on_without_a_node_that_is_killed_and_takes_it_when_it_is_back(
    elastic: Elastic,
) -> None:
    head, node = elastic.begin(0, "--max-restarts", "1"), elastic.begin(1)
    elastic.on(0, 4, head, node)
    killed(node)
    elastic.on(1, 2, head)
    shown(head, "; the job goes on with 1 of 2 hosts\n")
    again = elastic.begin(1)
    shown(head, "has come, and takes part in the next attempt\n")
    elastic.tell("fail1")
    elastic.on(2, 4, head, again)
    shown(head, "host node1 takes part again\n")
    elastic.tell("go")
    ended = [job.end(limit_s=30) for job in (head, again)]
    assert [one.code for one in ended] == [0, 0], ended[0].err + ended[1].err
    told = r"^restart 1 of 10 after preemptions and lost hosts in [3-5] s$"
    assert re.search(told, ended[0].err, re.MULTILINE)
    assert "restart 1 of 1 in 1 s\n" in ended[0].err
    assert "[node0/1] attempt 1 world 2\n" in ended[0].out
    assert "[node1/3] attempt 2 world 4\n" in ended[0].out


def test_a_node_that_is_told_to_end_leaves_when_all_ranks_have_saved(elastic: Elastic) -> None:
    body = """
        attempt = os.environ["XLA_RUN_ATTEMPT"]
        def save(number, frame):
            say("saved%s-%d" % (attempt, RANK))
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        say("on%s-%d" % (attempt, RANK))
        while attempt == "0":
            time.sleep(0.02)
    """
    head, node = (elastic.node(rank, body, *QUICK, nnodes="1:2") for rank in (0, 1))
    elastic.on(0, 4, head, node)
    os.kill(node.process.pid, signal.SIGTERM)
    since_s = time.monotonic()
    left, ended = node.end(limit_s=20), head.end(limit_s=30)
    assert time.monotonic() - since_s < 30
    assert all((elastic.folder / f"saved0-{rank}").exists() for rank in range(4))
    assert left.code == 143, left.err
    assert "xla-run: node1 has left the job, which may go on without it\n" in left.err
    assert ended.code == 0, ended.err
    told = "host node1 was lost (it was told to stop by SIGTERM); the job goes on with 1 of 2 hosts"
    assert told in ended.err


def test_a_node_that_is_told_to_end_while_it_takes_no_part_leaves_at_once(
    elastic: Elastic,
) -> None:
    head = elastic.begin(0)
    elastic.on(0, 2, head)
    node = elastic.begin(1)
    shown(head, "has come, and takes part in the next attempt\n")
    os.kill(node.process.pid, signal.SIGTERM)
    assert node.end(limit_s=10).code == 143
    elastic.tell("go")
    ended = head.end(limit_s=20)
    assert ended.code == 0, ended.err


def test_sigterm_to_node_0_ends_the_job_of_all(elastic: Elastic) -> None:
    jobs = elastic.begin(0), elastic.begin(1)
    elastic.on(0, 4, *jobs)
    os.kill(jobs[0].process.pid, signal.SIGTERM)
    assert [job.end(limit_s=20).code for job in jobs] == [143, 143]


def test_a_job_begins_with_the_nodes_that_have_come_after_a_wait(elastic: Elastic) -> None:
    elastic.tell("go")
    since_s = time.monotonic()
    ended = elastic.begin(0).end(limit_s=40)
    assert ended.code == 0, ended.err
    assert time.monotonic() - since_s < 40
    assert "host node1 is not there; the job goes on with 1 of 2 hosts\n" in ended.err
    assert "[node0/1] attempt 0 world 2\n" in ended.out


def test_too_few_nodes_at_the_start_end_with_72(elastic: Elastic) -> None:
    job = elastic.begin(0, "--rendezvous-timeout", "3", "--notice-after", "0.5", nnodes="2:3")
    shown(job, "waiting for nodes: 1 of 3 are there, at least 2 are needed (not yet at 127.0.0.1:")
    ended = job.end(limit_s=20)
    assert ended.code == ExitCode.RENDEZVOUS
    told = f"at least 2 are needed (not yet at 127.0.0.1:{elastic.port}: node1, node2), after 3 s"
    assert told in ended.err


def test_too_few_nodes_that_are_left_end_the_job_with_the_code_of_the_loss(
    elastic: Elastic,
) -> None:
    options = ("--rendezvous-timeout", "4")
    head, node = (elastic.begin(rank, *options, nnodes="2:3") for rank in (0, 1))
    elastic.on(0, 4, head, node)
    killed(node)
    since_s = time.monotonic()
    ended = head.end(limit_s=30)
    assert time.monotonic() - since_s < 30
    assert ended.code == ExitCode.HOST
    assert "no further attempt: 1 of 3 are there, at least 2 are needed (not yet at" in ended.err


def test_ctrl_c_while_nodes_are_waited_for_ends_the_job(elastic: Elastic) -> None:
    job = elastic.begin(0, "--notice-after", "0.5", nnodes="2:3")
    shown(job, "waiting for nodes: 1 of 3 are there")
    os.kill(job.process.pid, signal.SIGINT)
    ended = job.end(limit_s=10)
    assert ended.code == ExitCode.INTERRUPTED, ended.err


def test_nodes_with_another_range_are_refused(elastic: Elastic) -> None:
    head = elastic.begin(0, nnodes="1:2")
    ended = elastic.begin(1, nnodes="1:3").end(limit_s=30)
    assert ended.code == ExitCode.USAGE
    assert "it was started with --nnodes" in ended.err
    killed(head)

"""Hosts that are lost, or not there, and what an attempt then runs on: spares, or fewer hosts."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pod import Pod

BODY = """
    attempt = os.environ["XLA_RUN_ATTEMPT"]
    say("on%s-%d" % (attempt, RANK))
    print("world", os.environ["WORLD_SIZE"])
    if attempt == "0":
        time.sleep(200)
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    shared = tmp_path_factory.getbasetemp()
    with Pod(tmp_path_factory.mktemp("three"), shared, ("a", "b", "c")) as pod:
        yield pod


def begun(start: Callable, pod: Pod, body: str, *options: str) -> Any:
    own = ("--ssh-command", pod.ssh, "--env", "FOLDER", "--env", "XLA_RUN_TEST")
    return start(body, *own, "--hosts", "a,b,c", "-n", "1", *options)


def after_the_loss_of_b(start: Callable, pod: Pod, ranks: int, *options: str) -> Any:
    pod.make_whole()
    job = begun(start, pod, BODY, *options)
    for rank in range(ranks):
        job.wait_for(f"on0-{rank}")
    pod.hosts["b"].kill()
    return job.end(limit_s=60)


def test_a_host_that_is_killed_is_replaced_by_a_spare(start: Callable, three: Pod) -> None:
    ended = after_the_loss_of_b(start, three, 2, "--spares", "1")
    assert ended.code == 0, ended.err
    assert "host b was lost; spare c takes its place (0 of 1 spares left)" in ended.err
    assert "[c/1] world 2\n" in ended.out


def test_a_job_goes_on_with_fewer_hosts(start: Callable, three: Pod) -> None:
    ended = after_the_loss_of_b(start, three, 3, "--min-hosts", "2")
    assert ended.code == 0, ended.err
    assert "host b was lost; the job goes on with 2 of 3 hosts" in ended.err
    assert "[c/1] world 2\n" in ended.out


def test_a_host_that_cannot_be_reached_at_the_start_is_replaced(
    start: Callable, three: Pod
) -> None:
    three.make_whole()
    three.hosts["b"].kill()
    ended = begun(start, three, "print('ran')", "--spares", "1").end(limit_s=60)
    assert ended.code == 0, ended.err
    assert "host b could not take part; spare c takes its place" in ended.err
    assert "[c/1] ran\n" in ended.out

"""`xla-run --ray` on a real Ray cluster of two nodes: who the ranks are, and how they end.

Times are measured from outside, and afterwards nothing of the job is alive.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray_cluster
import silence
from ray_cluster import Cluster
from sniffing import sniffed

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.system import process_tree

WAITS = "say('on%d' % RANK); time.sleep(200)"
FACTS = """
    import json
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "XLA_RUN_ADDRESS", "XLA_RUN_CONTROL")
    say("rank%d" % RANK, json.dumps([os.environ[name] for name in names]))
    import torch, torch_xla, torch_xla.core.xla_model as xm
    print("sum", xm.all_reduce("sum", torch.ones(1, device="xla")).item())
"""


@pytest.fixture
def on_ray(start: Callable, cluster: Cluster) -> Callable:
    """`on_ray(body)`: `start` as two ranks on each of two nodes."""

    def begin(body: str, *options: str, nodes: int = 2, **env: str) -> Any:
        words = ("--ray", "--nodes", str(nodes), "-n", "2")
        # What Ray starts has the environment of its nodes: the marks of the test come by name.
        words += ("--env", "XLA_RUN_TEST", "--env", "FOLDER", "--env", "XLA_RUN_STATE_DIR")
        return start(body, *words, *options, env={**cluster.environ(), **env})

    return begin


def all_on(job: Any, ranks: int = 4) -> Any:
    for rank in range(ranks):
        job.wait_for(f"on{rank}")
    return job


def test_ranks_are_numbered_over_the_nodes_and_meet(on_ray: Callable) -> None:
    ended = on_ray(FACTS).end()
    assert ended.code == 0, ended.err
    told = [json.loads((ended.folder / f"rank{rank}").read_text()) for rank in range(4)]
    assert [one[:4] for one in told] == [
        *(["0", "0", "4", "0"], ["1", "1", "4", "0"], ["2", "0", "4", "1"], ["3", "1", "4", "1"]),
    ]
    # Two different nodes, which Ray has chosen.
    assert len({one[4] for one in told}) == 2
    assert {one[5].partition(":")[0] for one in told} == {"ray"}
    assert sorted(line for line in ended.out.splitlines() if "sum" in line) == [
        *("[node0/0] sum 4.0", "[node0/1] sum 4.0", "[node1/2] sum 4.0", "[node1/3] sum 4.0"),
    ]
    assert "4 ranks on 2 hosts, CPU (TCP)" in ended.err


@pytest.mark.long
def test_a_cluster_is_reached_through_a_ray_client(on_ray: Callable, cluster: Cluster) -> None:
    # Each server of the client that Ray forks in vain takes half a minute.
    ended = on_ray("print('is', RANK)", "--ray-address", cluster.client).end(limit_s=200)
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [
        *("[node0/0] is 0", "[node0/1] is 1", "[node1/2] is 2", "[node1/3] is 3"),
    ]


def test_code_is_shipped_to_the_nodes(start: Callable, cluster: Cluster, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import os; print(os.getcwd())")
    there = ("--env", "XLA_RUN_TEST", "--env", f"XLA_RUN_STATE_DIR={tmp_path}/there")
    words = ("--ray", "--nodes", "2", "-n", "1", *there, "--ship", ".", "--")
    before = ("env", "-C", str(code))
    command = (*words, sys.executable, "train.py")
    ended = start("", *command, dash=False, before=before, env=cluster.environ()).end()
    assert ended.code == 0, ended.err
    assert "shipped 1 file (29 bytes) to hosts node0 on " in ended.err
    assert ended.out.count(f"{tmp_path}/there/code/jobs/") == 2
    assert not list((tmp_path / "there/code/jobs").iterdir())


def test_a_rank_that_fails_is_named_with_its_node_and_ends_the_others(on_ray: Callable) -> None:
    ended = on_ray("meet()\nif RANK == 3: fault(); 1 // 0\ntime.sleep(200)").end()
    assert ended.code == 1
    assert "xla-run: rank 3 (host node1 on " in ended.err and "ZeroDivisionError" in ended.err
    assert ended.after_fault_s < 30


def test_ctrl_c_reaches_the_ranks_of_all_nodes(on_ray: Callable) -> None:
    job = all_on(on_ray(WAITS))
    os.kill(job.process.pid, signal.SIGINT)
    ended = job.end(limit_s=30)
    assert ended.code == 130 and "stopped by SIGINT" in ended.err


def test_a_killed_launcher_leaves_nothing_on_any_node(on_ray: Callable) -> None:
    job = all_on(on_ray(WAITS))
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait(20)
    assert job.gone(15.0), f"survivors: {job.alive()}"


def test_a_failure_of_an_attempt_is_followed_by_another_one(on_ray: Callable) -> None:
    body = (
        "meet()\nif RANK == 3 and os.environ['XLA_RUN_ATTEMPT'] == '0': 1 // 0\nsay('on%d' % RANK)"
    )
    ended = all_on(on_ray(body, "--max-restarts", "1")).end(limit_s=60)
    assert ended.code == 0, ended.err
    assert "restart 1 of 1" in ended.err


def test_a_second_job_of_the_same_name_is_refused(on_ray: Callable, tmp_path: Path) -> None:
    env = {"XLA_RUN_STATE_DIR": str(tmp_path / "state")}
    first = all_on(on_ray(WAITS, "--job-id", "twice", **env))
    second = on_ray(WAITS, "--job-id", "twice", **env).end(limit_s=30)
    assert second.code == ExitCode.DUPLICATE, second.err
    os.kill(first.process.pid, signal.SIGINT)
    assert first.end(limit_s=30).code == 130


def test_an_actor_that_is_killed_loses_its_host_with_what_ray_says(
    on_ray: Callable, cluster: Cluster
) -> None:
    job = all_on(on_ray(WAITS))
    (actor,) = cluster.of_node(1, "AgentActor")
    os.kill(actor, signal.SIGKILL)
    ended = job.end(limit_s=30)
    assert ended.code == ExitCode.HOST
    assert "was lost: its stream ended; Ray: The actor is dead because its worker" in ended.err


def test_a_request_that_finds_no_place_in_time_says_what_there_is(on_ray: Callable) -> None:
    ended = on_ray(WAITS, "--rendezvous-timeout", "8", nodes=3).end(limit_s=40)
    assert ended.code == ExitCode.RENDEZVOUS
    assert "Ray has found no place: 3 different nodes with CPU 2 each are needed" in ended.err
    assert "the cluster has 2 (" in ended.err and "CPU 8 is free" in ended.err


def test_an_address_without_a_cluster_is_named(on_ray: Callable) -> None:
    ended = on_ray(WAITS, "--ray-address", "127.0.0.1:9").end(limit_s=40)
    assert ended.code == ExitCode.HOST
    assert "xla-run: no Ray cluster can be reached at 127.0.0.1:9: " in ended.err
    assert "name it by --ray-address or RAY_ADDRESS" in ended.err


def test_what_ranks_are_told_is_on_no_wire_and_in_none_of_rays_files(
    on_ray: Callable, cluster: Cluster
) -> None:
    body = "say('secret%d' % RANK, os.environ['XLA_RUN_SECRET'])\nprint(os.environ['API_KEY'])"
    with sniffed() as packets:
        ended = on_ray(body, "--env", "API_KEY=opensesame").end()
    assert ended.code == 0, ended.err
    assert ended.out.count("opensesame") == 4
    carried = b"".join(packets)
    # The agent's command line is there to be read, and nothing of what it is told.
    assert b"agent_over_pipes" in carried and b"opensesame" not in carried
    told = [(ended.folder / f"secret{rank}").read_text().encode() for rank in range(4)]
    for path in cluster.folder.rglob("*"):
        if path.is_file():
            held = path.read_bytes()
            assert b"opensesame" not in held and not any(one in held for one in told), path


@pytest.mark.long
def test_a_silence_of_the_driver_is_waited_for(on_ray: Callable) -> None:
    job = all_on(on_ray(silence.BODY, *silence.OPTIONS))
    (driver,) = process_tree.children(job.process.pid)
    assert "[node1/3] went on" in silence.stopped_for_a_while(job, driver).out


# The last one here: this cluster has one node afterwards.
def test_a_node_that_dies_is_lost_and_its_ranks_end(on_ray: Callable, cluster: Cluster) -> None:
    job = all_on(on_ray(WAITS))
    (raylet,) = cluster.of_node(1, "raylet/raylet")
    os.kill(raylet, signal.SIGKILL)
    code = job.process.wait(40)
    assert job.gone(15.0), f"survivors: {job.alive()}"
    assert code == ExitCode.HOST
    assert "xla-run: host node" in job.texts() and "was lost: " in job.texts()


def test_a_cluster_that_dies_ends_the_job_on_all_nodes(start: Callable) -> None:
    if why := ray_cluster.missing():
        pytest.skip(why)
    with ray_cluster.running() as dying:
        words = ("--ray", "--nodes", "2", "-n", "1", "--env", "XLA_RUN_TEST", "--env", "FOLDER")
        job = all_on(start(WAITS, *words, env=dying.environ()), ranks=2)
        (store,) = dying.of_node(0, "gcs_server")
        os.kill(store, signal.SIGKILL)
        code = job.process.wait(60)
        assert job.gone(15.0), f"survivors: {job.alive()}"
        assert code == ExitCode.HOST, job.texts()

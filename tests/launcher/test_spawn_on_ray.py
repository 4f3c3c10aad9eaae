"""`spawn_on_ray`: a function in ranks on the nodes of a real Ray cluster of two."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ray_cluster import Cluster

from torch_xdist.launcher.facts.errors import (
    HostError,
    NestedSpawnError,
    RankFailedError,
    UsageError,
)
from torch_xdist.launcher.spawn_on_ray import spawn_on_ray

INSIDE_OF_RAY = """
    import os, ray, torch
    from torch_xdist.launcher.spawn_on_ray import spawn_on_ray

    def fn(rank, scale):
        import torch, torch_xla.core.xla_model as xm
        total = xm.all_reduce("sum", torch.full((2,), rank * scale, device="xla"))
        print("rank", rank)
        return total.cpu(), os.environ["XLA_RUN_ADDRESS"]

    ray.init(log_to_driver=False)
    found = spawn_on_ray(fn, (10.0,), nodes=2, nprocs=2)
    assert [t.tolist() for t, _ in found] == [[60.0, 60.0]] * 4, found
    assert found[0][1] == found[1][1] != found[2][1] == found[3][1]
    # The caller's own Ray goes on.
    assert ray.get(ray.remote(lambda: 7).remote()) == 7
"""


@pytest.fixture
def on_ray(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return cluster


def test_ranks_of_all_nodes_meet_and_their_results_come_back(
    on_ray: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(INSIDE_OF_RAY))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stdout.splitlines() if "] rank " in line]
    assert sorted(lines) == [
        "[node0/0] rank 0",
        "[node0/1] rank 1",
        "[node1/2] rank 2",
        "[node1/3] rank 3",
    ]


def test_the_snippet_of_the_page_on_pods_runs(on_ray: Cluster) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pods.md").read_text()
    (code,) = re.findall(r"```python\n(from torch_xdist.launcher.spawn_on_ray .*?)```", page, re.S)
    names = {"train": lambda rank, flags: rank * flags, "flags": 3}
    exec(code, names)
    assert names["losses"] == [0, 3, 6, 9]


def test_an_exception_of_a_rank_is_raised_here(on_ray: Cluster) -> None:
    def fails(rank: int) -> None:
        if rank == 1:
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as raised:
        spawn_on_ray(fails, nodes=2, nprocs=1)
    assert "in fails" in str(raised.value.__cause__)


def test_a_handle_is_stopped(on_ray: Cluster) -> None:
    def waits(rank: int) -> None:
        import time

        time.sleep(200)

    handle = spawn_on_ray(waits, nodes=2, nprocs=1, join=False)
    assert handle.join(timeout=0.5) is None and handle.processes == []
    handle.stop()
    with pytest.raises(RankFailedError) as raised:
        handle.join()
    assert raised.value.exit_code == 130


def test_an_address_without_a_cluster_is_told() -> None:
    pytest.importorskip("ray", reason="not installed: ray (pip install ray)")
    with pytest.raises(HostError, match=r"no Ray cluster can be reached at 127\.0\.0\.1:9"):
        spawn_on_ray(print, nodes=1, nprocs=1, address="127.0.0.1:9")


@pytest.mark.parametrize(
    "about", [{"nodes": 0, "nprocs": 1}, {"nodes": 1}, {"nodes": 1, "nprocs": 0}]
)
def test_numbers_that_cannot_be_right_are_refused(about: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"spawn_on_ray: nodes=.*are needed"):
        spawn_on_ray(print, **about)


def test_a_rank_cannot_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "XLA_RUN_TASK", "function")
    monkeypatch.setitem(os.environ, "RANK", "3")
    with pytest.raises(NestedSpawnError, match="spawn_on_ray: this is rank 3 of a job already"):
        spawn_on_ray(print, nodes=1, nprocs=1)

"""Two hosts, a and b, on which jobs of `xla-run --hosts` run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pod import Pod
from pod_nodes import TwoHosts


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    shared = tmp_path_factory.getbasetemp()
    with Pod(tmp_path_factory.mktemp("pod"), shared) as pod:
        yield pod


@pytest.fixture
def pod(built: Pod) -> Pod:
    """Both hosts are up, whatever the last test has done to them."""
    built.make_whole()
    return built


@pytest.fixture
def on_hosts(start: Callable, pod: Pod) -> Callable:
    """`on_hosts(body, "--hosts", "a,b", "-n", "2")`: `start` on hosts of the pod."""

    def begin(body: str, *options: str, **more: Any) -> Any:
        own = ("--ssh-command", pod.ssh, "--env", "FOLDER", "--env", "XLA_RUN_TEST")
        return start(body, *own, *options, **more)

    return begin


@pytest.fixture
def two_hosts(start: Callable, pod: Pod, tmp_path: Path) -> TwoHosts:
    """Nodes on the hosts of the pod, all of whose ranks write into one folder."""
    return TwoHosts(start, pod, tmp_path / "shared")

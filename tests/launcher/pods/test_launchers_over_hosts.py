"""The same script under the real torchrun, over two hosts with networks of their own."""

import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_launchers import check_ranks, script_in
from pod import Pod
from processes import kill_marked

PORT = "29801"
SUM = "[[10.0, 10.0, 10.0]]"


@pytest.fixture
def place(pod: Pod) -> Iterator[tuple[Path, str]]:
    """A folder that both hosts see, and the mark of what is started there; nothing stays."""
    mark = f"XLA_RUN_OTHERS_TEST={uuid.uuid4().hex}"
    folder = pod.folder.parent / mark[-8:]
    folder.mkdir()
    yield folder, mark
    kill_marked(mark)


def command(pod: Pod, host: str, mark: str, *words: str) -> subprocess.Popen[str]:
    """Started on a host, over ssh."""
    line = [*shlex.split(pod.ssh), host, "env", mark, "PJRT_DEVICE=CPU", *map(shlex.quote, words)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_ranks_of_torchrun_on_two_hosts_meet(pod: Pod, place: tuple[Path, str]) -> None:
    folder, mark = place
    script = str(script_in(folder))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    started = [
        command(
            *(pod, host.name, mark, *torchrun, "--nnodes", "2", "--node-rank", str(index)),
            *("--master-addr", pod.hosts["a"].address, "--master-port", PORT),
            *(script, str(folder), "well"),
        )
        for index, host in enumerate(pod.hosts.values())
    ]
    told = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], told
    check_ranks(folder, 4)
    assert all(text.count(SUM) == 2 for text in told)

"""The same script under the real torchrun and mpirun, over two hosts with networks of their own."""

import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_launchers import check_ranks, script_in
from pod import Pod
from processes import kill_marked

from torch_xdist.system.process_tree import marked

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
PORT = "29801"
SUM = "[[10.0, 10.0, 10.0]]"
TRANSPORTS = pytest.mark.parametrize(
    "settings", [[], ["XDIST_TRANSPORT=mesh"]], ids=["as it is", "mesh"]
)
NEEDS_MPIRUN = pytest.mark.skipif(
    not shutil.which("mpirun"), reason="mpirun (openmpi-bin) is not installed"
)


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


def torchrun(pod: Pod, place: tuple[Path, str], how: str, *settings: str) -> list[tuple[int, str]]:
    """The codes and words of torchrun on two hosts with two ranks each."""
    folder, mark = place
    script = str(script_in(folder))
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words += ["--nnodes", "2", "--master-addr", pod.hosts["a"].address, "--master-port", PORT]
    started = [
        command(
            *(pod, host.name, mark, *settings, *words, "--node-rank", str(index)),
            *(script, str(folder), how),
        )
        for index, host in enumerate(pod.hosts.values())
    ]
    told = [process.communicate(timeout=200)[0] for process in started]
    return [(process.returncode, text) for process, text in zip(started, told)]


def mpirun(pod: Pod, place: tuple[Path, str], how: str, *settings: str) -> tuple[int, str]:
    """The code and the words of mpirun on a host, which reaches the other over ssh."""
    folder, mark = place
    words = ["mpirun", "--allow-run-as-root", "-np", "4", "--host", "a:2,b:2"]
    words += ["--mca", "plm_rsh_agent", pod.ssh, "--mca", "btl", "self,tcp"]
    for setting in ("PJRT_DEVICE", mark.split("=")[0], *settings):
        words += ["-x", setting]
    script = str(script_in(folder))
    process = command(pod, "a", mark, *words, sys.executable, script, str(folder), how)
    told, _ = process.communicate(timeout=200)
    return process.returncode, told


@TRANSPORTS
def test_the_ranks_of_torchrun_on_two_hosts_meet(
    pod: Pod, place: tuple[Path, str], settings: list[str]
) -> None:
    told = torchrun(pod, place, "well", *settings)
    assert [code for code, _ in told] == [0, 0], told
    check_ranks(place[0], 4)
    assert all(text.count(SUM) == 2 for _, text in told)


@TRANSPORTS
@NEEDS_MPIRUN
def test_the_ranks_of_mpirun_on_two_hosts_meet(
    pod: Pod, place: tuple[Path, str], settings: list[str]
) -> None:
    code, told = mpirun(pod, place, "well", *settings)
    assert code == 0, told
    check_ranks(place[0], 4)
    assert told.count(SUM) == 4


def test_a_rank_of_torchrun_that_fails_ends_those_of_the_other_host(
    pod: Pod, place: tuple[Path, str]
) -> None:
    (one, its), (other, others) = torchrun(pod, place, "failing")
    assert one != 0 and other != 0, (its, others)
    assert "ValueError: rank 1 gives up" in its
    assert not marked(place[1])


@NEEDS_MPIRUN
def test_a_rank_of_mpirun_that_fails_ends_those_of_the_other_host(
    pod: Pod, place: tuple[Path, str]
) -> None:
    code, told = mpirun(pod, place, "failing")
    assert code == 1, told
    assert "ValueError: rank 1 gives up" in told
    assert not marked(place[1])

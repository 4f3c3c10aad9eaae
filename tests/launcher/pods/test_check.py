"""`xla-run check` on two hosts, while they are well and while something of them is not."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from marked_processes import assert_gone, none_left
from pod import Pod, PodHost
from pod_nodes import PORT

from torch_xdist.system import process_tree

BOTH = ("--hosts", "a,b")


@pytest.fixture
def check(pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """`check("--hosts", "a,b")`: its end; nothing of it may be left on any host."""
    mark = f"XLA_RUN_TEST=check{time.time_ns()}"
    monkeypatch.setenv("XDIST_TEST_MARK", mark)

    def run(*words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        options = ("--ssh-command", pod.ssh, "--python", python, "--limit", "40")
        done = subprocess.run(
            [sys.executable, "-m", "torch_xdist.launcher", "check", *options, *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert_gone(f"XDIST_TEST_MARK={mark}")
        return done

    return run


def on(pod: Pod, name: str, command: str) -> None:
    """Run a line of shell on a host."""
    subprocess.run([*pod.ssh.split(), name, command], check=True, timeout=30)


def rows(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.splitlines()


def test_hosts_that_are_well_can_run_a_job(check: Callable, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import model")
    (tmp_path / "model.py").write_text("")
    done = check(*BOTH, "-n", "2", sys.executable, "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    title, first, second, *_, last = rows(done)
    assert title.split()[:3] == ["HOST", "LOGIN", "PYTHON"]
    assert first.split()[0] == "a" and second.split()[0] == "b" and "B/s" in second
    assert "2 files" in first and "!" not in first + second
    assert last == "a job can run on 2 hosts" and "\x1b" not in done.stdout
    assert done.stderr == ""


def test_a_host_that_is_down_is_named_and_the_other_is_looked_at(check: Callable, pod: Pod) -> None:
    pod.hosts["b"].kill()
    done = check(*BOTH)
    assert done.returncode == 73
    assert "host b: ssh cannot reach it: ssh: connect to host" in done.stdout
    assert rows(done)[2].split()[:2] == ["b", "!failed"] and rows(done)[1].split()[0] == "a"


def test_a_host_that_refuses_the_login_is_named(check: Callable) -> None:
    done = check("--hosts", "a,nobody@b")
    assert done.returncode == 73
    assert "Permission denied (publickey" in done.stdout and "try `ssh nobody@b`" in done.stdout


def test_a_python_that_is_not_there_is_named(check: Callable) -> None:
    done = check(*BOTH, python="/no/python")
    assert done.returncode == 73
    assert "hosts a, b: /no/python cannot be started there: " in done.stdout
    assert "or name the one it has by --python" in done.stdout


def test_another_version_on_one_host_is_named_with_both(
    check: Callable, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = "/tmp/only-on-b/jax-0.0.1.dist-info"
    on(pod, "b", f"mkdir -p {info}; printf 'Name: jax\\nVersion: 0.0.1\\n' > {info}/METADATA")
    monkeypatch.setenv("PYTHONPATH", "/tmp/only-on-b")
    done = check(*BOTH)
    on(pod, "b", "rm -r /tmp/only-on-b")
    assert done.returncode == 71, done.stdout + done.stderr
    assert "host b: jax 0.0.1 is there, but 0." in done.stdout and "!0.0.1" in rows(done)[2]


def test_another_script_on_one_host_is_named(check: Callable, pod: Pod, tmp_path: Path) -> None:
    # On b another folder lies where the script is.
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    on(pod, "b", f"mount -t tmpfs job {folder} && echo 'print(2)' > {folder}/train.py")
    done = check(*BOTH, sys.executable, "job/train.py")
    assert done.returncode == 71
    assert "host b: train.py is another one there (" in done.stdout
    on(pod, "b", f"rm {folder}/train.py")
    done = check(*BOTH, sys.executable, "job/train.py")
    on(pod, "b", f"umount {folder}")
    assert done.returncode == 71
    assert f"host b: {folder}/train.py does not exist there; copy the code" in done.stdout


@pytest.fixture
def silent_ports(pod: Pod) -> Iterator[PodHost]:
    """On host b the ports where ranks meet take no connection, those that it opens itself work."""
    host = pod.hosts["b"]
    host.loses_answers_from(61000, 65534)
    yield host
    host.answers_again(61000, 65534)


def test_a_port_that_is_blocked_in_one_direction_is_named(
    check: Callable, silent_ports: PodHost
) -> None:
    done = check(*BOTH)
    assert done.returncode == 73
    where = f"host a cannot reach host b at {silent_ports.address} (port 6"
    assert where in done.stdout and "timed out); hosts must reach each other on any" in done.stdout
    assert "cannot reach host a" not in done.stdout


def test_little_shared_memory_is_a_warning(check: Callable, pod: Pod) -> None:
    on(pod, "b", "mount -o remount,size=64m /dev/shm")
    done = check(*BOTH)
    on(pod, "b", "mount -o remount,size=50% /dev/shm")
    assert done.returncode == 0, done.stdout
    assert "warning: host b: 67 MB are free in /dev/shm, less than 256 MB" in done.stdout
    assert rows(done)[-1] == "a job can run on 2 hosts; 1 warning"


def test_a_full_disk_is_a_warning(check: Callable, pod: Pod) -> None:
    on(pod, "b", "mkdir -p /tmp/xla-run-0 && chmod 700 /tmp/xla-run-0")
    on(pod, "b", "mount -t tmpfs -o size=64k,mode=700 full /tmp/xla-run-0")
    on(pod, "b", "head -c 1m /dev/zero > /tmp/xla-run-0/file 2> /tmp/said || true")
    done = check(*BOTH)
    on(pod, "b", "umount /tmp/xla-run-0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning: host b: 0 MB are free for logs in /tmp/xla-run-0/logs" in done.stdout


def test_no_data_is_sent_where_that_is_asked(check: Callable) -> None:
    done = check(*BOTH, "--no-bandwidth")
    assert done.returncode == 0 and "B/s" not in done.stdout and " ms " in done.stdout


def test_nodes_that_come_by_themselves_are_looked_at_as_hosts_are(
    nodes_check: Callable, silent_ports: PodHost
) -> None:
    head, node = nodes_check("a", 0), nodes_check("b", 1)
    out, err = head.communicate(timeout=90)
    assert head.returncode == 73, out + err
    first, second = out.splitlines()[1:3]
    assert first.startswith("node0 on a ") and second.startswith("node1 on b ")
    where = f"host node0 on a cannot reach host node1 on b at {silent_ports.address} (port 6"
    assert where in out and "give all nodes a --master-addr in a network that connects" in out
    assert node.wait(20) == 73
    assert "no job can run on 2 hosts: 1 error" in node.communicate()[1]


@pytest.fixture
def nodes_check(pod: Pod, tmp_path: Path) -> Iterator[Callable]:
    """`nodes_check("a", 0)`: the check of a node, on a host."""
    with none_left("check") as (mark, started):

        def begin(name: str, rank: int) -> subprocess.Popen[str]:
            (first,) = process_tree.children(pod.hosts[name]._process.pid)
            where = ("--master-addr", pod.hosts["a"].address, "--master-port", PORT)
            words = ("--nnodes", "2", "--node-rank", str(rank), *where, "--limit", "40")
            inside = ("nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p", "--")
            begun = subprocess.Popen(
                [*inside, "env", "-C", str(tmp_path), "XLA_RUN_SECRET=" + "5e" * 32, mark,
                 sys.executable, "-m", "torch_xdist.launcher", "check", *words],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            started.append(begun)
            return begun

        yield begin

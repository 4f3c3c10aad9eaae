"""`xla-run --ship` to two hosts over ssh: what travels, where ranks start, and what is left."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pod import Pod

from torch_xdist.launcher.facts.errors import ExitCode

TWO = ("--hosts", "a,b", "-n", "1")
PLACE = f"/tmp/xla-run-{os.getuid()}/code"
SHOWS = "import os, sys; print('in', os.getcwd(), sorted(os.listdir()), sys.argv[1])"
# As slow as a network far away, and without a word of it to ssh.
SLOW = """
import os, select, socket, sys, time
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for one in select.select([0, sock], [], [])[0]:
        if one == 0:
            data = os.read(0, 1 << 15)
            time.sleep(len(data) / 1e6)
            sock.sendall(data)
        else:
            data = sock.recv(1 << 18)
            os.write(1, data)
        if not data:
            sys.exit()
"""


def on(pod: Pod, name: str, command: str) -> str:
    """What a line of shell says on a host."""
    words = [*pod.ssh.split(), name, command]
    return subprocess.run(words, check=True, timeout=30, capture_output=True, text=True).stdout


def left_on(pod: Pod, name: str) -> list[str]:
    """The copies of jobs, and contents on their way, that a host still has.

    Some may go while they are looked for, and a job that has failed early has made no place there.
    """
    return on(pod, name, f"cd {PLACE} || exit 0; find jobs incoming -mindepth 1; true").split()


class Code:
    """A folder of code, and jobs that ship it."""

    def __init__(self, folder: Path, on_hosts: Callable) -> None:
        self.folder, self._on_hosts = folder, on_hosts
        folder.mkdir()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)

    def ship(self, *options: str, hosts: Sequence[str] = TWO, **more: Any) -> Any:
        """Start train.py of the folder; its own arguments say nothing."""
        command = ("--", sys.executable, "train.py", "told")
        before = ("env", "-C", str(self.folder))
        words = (*hosts, "--ship", ".", *options, *command)
        return self._on_hosts("", *words, dash=False, before=before, **more)


@pytest.fixture
def code(on_hosts: Callable, pod: Pod, tmp_path: Path) -> Code:
    """Neither host has been sent anything yet."""
    for name in pod.hosts:
        on(pod, name, f"rm -rf {PLACE}")
    return Code(tmp_path / "code", on_hosts)


def sent(ended: Any) -> int:
    """How many bytes each host was sent, as the head tells it."""
    return int(re.search(r"shipped .*: (\d+) bytes sent to each", ended.err)[1])


def test_the_ranks_of_every_host_start_in_a_copy_of_the_folder(code: Code, pod: Pod) -> None:
    code.write(train=SHOWS, model="x = 1")
    ended = code.ship().end()
    assert ended.code == 0, ended.err
    size = len(SHOWS) + 5
    told = f"shipped 2 files ({size} bytes) to hosts a, b: {size} bytes sent to each"
    assert told in ended.err
    for rank, host in enumerate("ab"):
        copy = rf"{PLACE}/jobs/\S+-{rank}/tree/code \['model.py', 'train.py'\] told"
        assert re.search(rf"^\[{host}/{rank}\] in {copy}$", ended.out, re.MULTILINE), ended.out
        assert left_on(pod, host) == []


def test_only_what_has_changed_is_sent_again(code: Code) -> None:
    code.write(train="import model; print(model.x)", model="x = 1")
    assert sent(code.ship().end()) == 33
    assert sent(code.ship().end()) == 0
    code.write(model="x = 234")
    ended = code.ship().end()
    assert sent(ended) == 7 and "[b/1] 234" in ended.out


def test_what_git_ignores_stays_here(code: Code) -> None:
    (code.folder / "runs").mkdir()
    (code.folder / "runs/old.pt").write_bytes(bytes(100_000))
    (code.folder / ".gitignore").write_text("runs/\n")
    code.write(train=SHOWS)
    ended = code.ship().end()
    assert "['.gitignore', 'train.py'] told" in ended.out, ended.err
    assert sent(ended) == len(SHOWS) + 6


def test_the_copy_comes_before_what_the_host_has_at_the_same_place(code: Code) -> None:
    code.write(train="import model; print(model.__file__)", model="")
    ended = code.ship("--env", f"PYTHONPATH={code.folder}").end()
    assert ended.out.count(f"{PLACE}/jobs/") == 2, ended.out


def test_what_ranks_write_into_the_copy_is_kept_and_told(code: Code, pod: Pod) -> None:
    code.write(train="import os\nif os.environ['RANK'] == '1': open('result', 'w').write('x')")
    ended = code.ship().end()
    found = re.search(r"host b: 1 file of the ranks' own left in (\S+)", ended.err)
    assert found and on(pod, "b", f"ls {found[1]}").split() == ["result"]
    assert left_on(pod, "a") == []


def test_the_next_attempt_starts_in_the_same_copy(code: Code, pod: Pod) -> None:
    body = """
import os
print("has", os.path.exists("step"))
open("step", "w").close()
1 // int(os.environ["XLA_RUN_ATTEMPT"])
os.unlink("step")
"""
    code.write(train=body)
    ended = code.ship("--max-restarts", "1").end()
    assert ended.code == 0, ended.err
    assert sorted(ended.out.split("\n")[:4]) == [
        *("[a/0] has False", "[a/0] has True", "[b/1] has False", "[b/1] has True"),
    ]
    assert left_on(pod, "a") == left_on(pod, "b") == []


@pytest.fixture
def small_disk(code: Code, pod: Pod) -> Iterator[None]:
    """Host b has 1 MB for what it is sent."""
    on(pod, "b", f"mkdir -p -m 700 {PLACE} && mount -t tmpfs -o size=1m,mode=700 code {PLACE}")
    yield
    on(pod, "b", f"umount {PLACE}")


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_told_with_its_host_and_leaves_nothing(code: Code, pod: Pod) -> None:
    code.write(train="")
    (code.folder / "weights").write_bytes(os.urandom(3_000_000))
    ended = code.ship().end()
    assert ended.code == ExitCode.PREFLIGHT
    assert re.search(
        rf"host b: shipped code: 6 MB are needed in {PLACE}, and [\d.]+ MB are free", ended.err
    )
    assert left_on(pod, "a") == left_on(pod, "b") == []


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_fills_up_meanwhile_is_told_with_its_host(code: Code, pod: Pod) -> None:
    # So many names that the file system has no more room, and hardly a byte in them.
    on(pod, "b", f"mount -o remount,nr_inodes=30 {PLACE}")
    code.write(train="", **{f"part{number}": "" for number in range(60)})
    ended = code.ship().end()
    assert ended.code == ExitCode.PREFLIGHT
    assert "host b: shipped code: " in ended.err and "make room there" in ended.err
    assert left_on(pod, "a") == left_on(pod, "b") == []


def test_a_cache_that_cannot_be_written_is_told_with_its_host(code: Code, pod: Pod) -> None:
    on(pod, "b", f"mkdir -p -m 700 {PLACE} && mount -t tmpfs -o ro,mode=700 code {PLACE}")
    code.write(train="")
    ended = code.ship().end()
    on(pod, "b", f"umount {PLACE}")
    assert ended.code == ExitCode.PREFLIGHT
    assert "host b: shipped code: Read-only file system" in ended.err


def slow_ssh(pod: Pod, folder: Path) -> tuple[str, str]:
    """The option by which a megabyte takes a second."""
    (folder / "slow.py").write_text(SLOW)
    return ("--ssh-command", f"{pod.ssh} -o 'ProxyCommand={sys.executable} {folder}/slow.py %h %p'")


def in_the_middle(code: Code, pod: Pod, folder: Path) -> Any:
    """A job that has shipped some of ten megabytes."""
    code.write(train="")
    (code.folder / "weights").write_bytes(os.urandom(10_000_000))
    job = code.ship(*slow_ssh(pod, folder))
    end_s = time.monotonic() + 60
    while not re.search(r"shipping \S+ to hosts a, b: [\d.]+ MB of 20 MB", job.texts()):
        assert time.monotonic() < end_s and job.process.poll() is None, job.texts()
        time.sleep(0.05)
    assert left_on(pod, "b")
    return job


def await_nothing_on(pod: Pod) -> None:
    end_s = time.monotonic() + 20
    while found := [path for name in pod.hosts for path in left_on(pod, name)]:
        assert time.monotonic() < end_s, found
        time.sleep(0.1)


def test_a_launcher_that_is_killed_in_the_middle_leaves_no_half_copy(
    code: Code, pod: Pod, tmp_path: Path
) -> None:
    job = in_the_middle(code, pod, tmp_path)
    job.process.kill()
    job.process.wait()
    assert job.gone(20), job.alive()
    await_nothing_on(pod)


def test_a_launcher_that_is_killed_while_ranks_run_leaves_no_copy(code: Code, pod: Pod) -> None:
    code.write(train="import time; print('runs', flush=True); time.sleep(200)")
    job = code.ship()
    end_s = time.monotonic() + 60
    while job.texts().count("runs") < 2:
        assert time.monotonic() < end_s, job.texts()
        time.sleep(0.05)
    assert left_on(pod, "a") and left_on(pod, "b")
    job.process.kill()
    job.process.wait()
    assert job.gone(20), job.alive()
    await_nothing_on(pod)


def test_ctrl_c_in_the_middle_ends_the_job_and_leaves_no_half_copy(
    code: Code, pod: Pod, tmp_path: Path
) -> None:
    job = in_the_middle(code, pod, tmp_path)
    job.process.send_signal(signal.SIGINT)
    ended = job.end()
    assert ended.code == 130, ended.err
    await_nothing_on(pod)


def test_a_file_that_changes_meanwhile_ends_the_job_with_its_name(
    code: Code, pod: Pod, tmp_path: Path
) -> None:
    job = in_the_middle(code, pod, tmp_path)
    (code.folder / "weights").write_bytes(bytes(10_000_000))
    ended = job.end()
    assert ended.code == ExitCode.PREFLIGHT
    assert "weights was changed while it was shipped; start again when nobody" in ended.err
    await_nothing_on(pod)


@pytest.mark.long
def test_code_that_travels_longer_than_ranks_may_take_to_come_ends_no_job(
    code: Code, pod: Pod, tmp_path: Path
) -> None:
    code.write(train="print('runs', flush=True)")
    (code.folder / "weights").write_bytes(os.urandom(13_000_000))
    ended = code.ship(*slow_ssh(pod, tmp_path), "--rendezvous-timeout", "10").end()
    assert ended.code == 0, ended.err
    assert int(re.search(r"shipped .* in (\d+) s: 13 MB sent to each", ended.err)[1]) > 10
    assert ended.out.count("runs") == 2


def test_what_a_killed_agent_has_left_goes_with_the_next_job(
    code: Code, pod: Pod, tmp_path: Path
) -> None:
    job = in_the_middle(code, pod, tmp_path)
    on(pod, "b", "pkill -KILL -f '[a]gent_over_pipes'")
    assert job.end().code == ExitCode.HOST
    assert [path for path in left_on(pod, "b") if path.endswith("tree/code")]
    (code.folder / "weights").unlink()
    assert code.ship().end().code == 0
    assert not [path for path in left_on(pod, "b") if path.startswith("jobs/")]


def test_a_folder_without_git_on_this_machine_is_shipped_whole(code: Code, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ssh").symlink_to(shutil.which("ssh"))
    (tools / "env").symlink_to(shutil.which("env"))
    (tools / "python").symlink_to(sys.executable)
    code.write(train=SHOWS)
    ended = code.ship(env={"PATH": str(tools)}).end()
    assert ended.code == 0 and sent(ended) == len(SHOWS), ended.err

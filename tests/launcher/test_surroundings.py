"""What surrounds a job and must not disturb it: disks, pipes, proxies, host names, other jobs."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torch_xdist.system import process_tree

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
TWO = ("--nprocs", "2")
# So that the job has a coordinator.
GLOO = {"XDIST_TRANSPORT": "gloo"}


def test_proxy_variables_do_not_reach_the_control_plane(run: Callable) -> None:
    proxies = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "grpc_proxy")}
    ended = run("print(os.environ['http_proxy'])", *TWO, env=proxies)
    assert ended.code == 0
    assert "[1] http://127.0.0.1:9" in ended.out


@pytest.mark.parametrize("harm", ["removed", "replaced by a file"])
def test_a_log_directory_that_goes_away_is_one_warning(start: Callable, harm: str) -> None:
    job = start(
        """
        import shutil
        print("before")
        meet()
        say("ready")
        while not os.path.exists(os.path.join(FOLDER, "go")): time.sleep(0.01)
        time.sleep(1.2)
        for _ in range(3):
            print("after"); time.sleep(0.1)
        """,
        *TWO,
    )
    job.wait_for("ready")
    (logs,) = job.folder.glob("logs/*")
    logs.rename(job.folder / "elsewhere")
    for path in (job.folder / "elsewhere").glob("attempt-0/*"):
        path.unlink()
    if harm != "removed":
        logs.write_text("a file")
    (job.folder / "go").write_text("x")
    ended = job.end()
    assert ended.code == 0
    assert ended.out.count("after") == 6
    assert ended.err.count("warning: log directory") == 1


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own; skips where this process may not mount one."""
    disk = folder / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    if subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip(f"a file system ({options}) cannot be mounted here: that needs CAP_SYS_ADMIN")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 64 KiB."""
    with mounted(tmp_path, "size=64k") as disk:
        yield disk


def test_a_full_disk_is_one_warning(run: Callable, small_disk: Path) -> None:
    ended = run(
        """
        for _ in range(200):
            print("y" * 1000)
        print("after")
        """,
        *(*TWO, "--log-dir", str(small_disk)),
    )
    assert ended.code == 0
    assert ended.out.count("after") == 2
    assert ended.err.count("warning: log directory") == 1


def test_a_log_directory_that_cannot_be_made_is_one_warning(run: Callable) -> None:
    ended = run("print('after')", *TWO, "--log-dir", "/dev/null/logs")
    assert ended.code == 0
    assert ended.out.count("after") == 2
    assert ended.err.count("warning: log directory") == 1


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that nobody can write to, not even root."""
    with mounted(tmp_path, "ro") as disk:
        yield disk


def test_a_read_only_log_directory_is_one_warning(run: Callable, read_only_disk: Path) -> None:
    ended = run("print('after')", *TWO, "--log-dir", str(read_only_disk))
    assert ended.code == 0
    assert ended.out.count("after") == 2
    assert ended.err.count("warning: log directory") == 1


_OTHER_NAME = """
mount --bind "$HOSTS" /etc/hosts && hostname odd-name && exec "$@"
"""


def test_the_ranks_of_one_host_meet_on_loopback_whatever_its_name_says(
    start: Callable, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 odd-name\n")
    before = ("unshare", "--mount", "--uts", "sh", "-c", _OTHER_NAME, "sh")
    probe = subprocess.run(
        [*before, "true"], env={**os.environ, "HOSTS": str(hosts)}, capture_output=True, text=True
    )
    if probe.returncode != 0:
        pytest.skip(f"a host of another name cannot be made here: {probe.stderr}")
    names = ("MASTER_ADDR", "XLA_RUN_COORDINATOR", "XLA_RUN_CONTROL")
    job = start(
        f"""
        import socket
        meet()
        if RANK == 1:
            print(socket.gethostbyname(socket.gethostname()))
            for name in {names}: print(os.environ[name])
            os.kill(os.getpid(), 9)
        """,
        *TWO,
        env={"HOSTS": str(hosts), **GLOO},
        before=before,
    )
    ended = job.end()
    assert ended.code == 137 and "rank 1 (host odd-name" in ended.err
    first, *addresses = [line.removeprefix("[1] ") for line in ended.out.splitlines()]
    assert first == "127.0.1.1"
    assert [address.split(":")[0] for address in addresses] == ["127.0.0.1"] * 3


def test_output_in_any_shape_arrives_whole_in_the_file(run: Callable) -> None:
    ended = run(
        r"""
        raw = sys.stdout.buffer
        raw.write(b"\xff\xfe bad bytes\n"); raw.write("half \u20ac".encode()[:-1]); raw.flush()
        time.sleep(0.2)
        raw.write("\u20ac".encode()[-1:] + b"\n")
        for i in range(50): raw.write(b"\r%d%%" % i)
        raw.write(b"\n" + b"y" * 10000 + b"\nno newline at the end"); raw.flush()
        """,
        *("--nprocs", "1"),
    )
    assert ended.code == 0
    lines = ended.out.split("\n")
    assert "half \u20ac" in lines and "49%" in lines and "no newline at the end" in lines
    (log,) = ended.folder.glob("logs/*/*/rank-0.log")
    data = log.read_bytes()
    assert data.startswith(b"\xff\xfe bad bytes\n") and b"y" * 10000 in data


@pytest.mark.long
def test_200_mb_to_a_terminal_that_nobody_reads_hold_up_no_rank(tmp_path: Path) -> None:
    script = tmp_path / "loud.py"
    script.write_text(
        "import os\nline = b'x' * 999 + b'\\n'\nfor _ in range(100): os.write(1, line * 1000)\n"
    )
    # A pipe stands for the terminal: it holds 64 KiB, and we do not read it.
    job = subprocess.Popen(
        [*XLA_RUN, "--nprocs", "2", "--job-id", "loud", "--", sys.executable, str(script)],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(tmp_path), "XLA_RUN_PREIMPORT": ""},
        stdout=subprocess.PIPE,
    )
    peak_kb = 0
    while job.poll() is None:
        for pid in process_tree.children(job.pid):
            peak_kb = max(peak_kb, _peak_kb(pid))
        time.sleep(0.05)
    assert job.stdout is not None
    job.stdout.close()
    assert job.returncode == 0
    assert 0 < peak_kb < 200_000
    for rank in range(2):
        log = tmp_path / "logs" / "loud" / "attempt-0" / f"rank-{rank}.log"
        assert log.stat().st_size == 100_000_000


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A cgroup of 300 MB, of whichever version this host has."""
    root = Path("/sys/fs/cgroup")
    old = (root / "memory").is_dir()
    folder = (root / "memory" if old else root) / f"xla-run-job-{os.getpid()}"
    try:
        folder.mkdir()
        limit = "memory.limit_in_bytes" if old else "memory.max"
        (folder / limit).write_text("300000000")
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"a cgroup cannot be made here: {error}")
    yield folder
    folder.rmdir()


def test_a_rank_out_of_memory_is_called_that(small_memory: Path, tmp_path: Path) -> None:
    script = tmp_path / "grow.py"
    script.write_text(
        "import os, time\nblocks = []\n"
        "while os.environ['RANK'] == '1': blocks.append(bytearray(b'x' * (8 << 20)))\n"
        "time.sleep(600)\n"
    )
    enter = f'echo $$ > {small_memory}/cgroup.procs && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", enter, "sh", *XLA_RUN, "--nprocs", "2", "--", sys.executable, str(script)],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(tmp_path), "XLA_RUN_PREIMPORT": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "echo" in done.stderr:
        pytest.skip(f"a cgroup cannot be entered here: {done.stderr}")
    assert done.returncode == 137
    assert "rank 1 (host" in done.stderr and "out of memory" in done.stderr


def test_two_jobs_at_once_do_not_meet(start: Callable) -> None:
    jobs = [
        start("meet(); print(os.environ['XLA_RUN_COORDINATOR'])", *TWO, env=GLOO) for _ in range(2)
    ]
    ended = [job.end() for job in jobs]
    assert [job.code for job in ended] == [0, 0]
    assert not set(ended[0].out.split()) & set(ended[1].out.split()) - {"[0]", "[1]"}


def test_the_launcher_shows_no_output_of_ranks_that_are_not_teed(run: Callable) -> None:
    ended = run("print('loud')", *TWO, "--tee", "1")
    assert ended.out.splitlines() == ["[1] loud"]
    assert ended.log(0) == "loud\n"


def test_a_closed_terminal_does_not_end_the_job(tmp_path: Path) -> None:
    script = "import time; print('x' * 100000); time.sleep(1); print('x' * 100000)"
    words = [sys.executable, "-m", "torch_xdist.launcher", "--nprocs", "1", "--"]
    job = subprocess.Popen(
        [*words, sys.executable, "-S", "-c", script],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert job.stdout is not None
    job.stdout.close()
    assert job.wait(30) == 0


def _peak_kb(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    hits = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(hits[0]) if hits else 0

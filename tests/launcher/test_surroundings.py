"""What surrounds a job and must not disturb it: disks, pipes, proxies, host names, other jobs."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from namespaces import surrounded

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


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where a file system is mounted for a job alone."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def mounted(disk: Path, options: str, then: str = "true") -> tuple[str, ...]:
    """Before a command: it finds a file system of its own there."""
    mount = f"mount -t tmpfs -o {options} tmpfs {disk} && chmod 700 {disk}"
    return surrounded("--mount", f"{mount}; {then}")


@pytest.mark.parametrize("full", ["small", "read-only"])
def test_a_log_directory_that_cannot_be_written_is_one_warning(
    start: Callable, disk: Path, full: str
) -> None:
    before = mounted(disk, "size=64k" if full == "small" else "ro")
    job = start(
        """
        for _ in range(200):
            print("y" * 1000)
        print("after")
        """,
        *(*TWO, "--log-dir", str(disk)),
        before=before,
    )
    ended = job.end()
    assert ended.code == 0
    assert ended.out.count("after") == 2
    assert ended.err.count("warning: log directory") == 1
    room = "No space left on device (0 bytes free)"
    words = room if full == "small" else "Read-only file system"
    assert f"{words}; the job goes on, output is lost there" in ended.err


def test_a_log_directory_that_cannot_be_made_is_one_warning(run: Callable) -> None:
    ended = run("print('after')", *TWO, "--log-dir", "/dev/null/logs")
    assert ended.code == 0
    assert ended.out.count("after") == 2
    assert ended.err.count("warning: log directory") == 1


# Opening a FIFO that nobody reads hangs, as a file of a server does that is gone.
_HANG = """
path = os.path.join(os.environ["XLA_RUN_LOG_DIR"], "rank-%d.log" % RANK)
os.makedirs(os.path.dirname(path), exist_ok=True)
os.mkfifo(path)
meet()
"""


def test_a_log_directory_that_hangs_holds_up_no_rank(run: Callable) -> None:
    ended = run(
        _HANG
        + """
for _ in range(400): os.write(1, b"x" * 99999 + b"\\n")
say("done%d" % RANK)
print("after")
""",
        *(*TWO, "--tee", "0"),
    )
    assert ended.code == 0
    assert ended.seconds < 30, "40 MB per rank, and the disk is given up after 5 s"
    assert (ended.folder / "done0").exists() and (ended.folder / "done1").exists()
    assert ended.err.count("warning: log directory") == 1
    assert "a write has not come back for 5 s; the job goes on" in ended.err


def test_a_log_directory_that_hangs_delays_no_verdict(run: Callable) -> None:
    ended = run(
        _HANG
        + """
if RANK: fault(); raise ValueError("bad batch")
while True: os.write(1, b"noise\\n" * 2000)
""",
        *TWO,
    )
    assert ended.code == 1 and "rank 1 (host" in ended.err
    assert ended.after_fault_s < 30, "5 s for the ranks, 4 for what waits for the disk"


def test_a_full_state_directory_is_a_warning(start: Callable, disk: Path) -> None:
    fill = f"dd if=/dev/zero of={disk}/fill bs=4k 2> {disk}/none; true"
    before = mounted(disk, "size=16k", then=fill)
    job = start("print('after')", *TWO, before=before, env={"XLA_RUN_STATE_DIR": str(disk)})
    ended = job.end()
    assert ended.code == 0 and ended.out.count("after") == 2
    assert "Traceback" not in ended.err
    assert "warning: the record of this job cannot be written (No space left on device)" in (
        ended.err
    )


def test_a_state_directory_without_room_for_a_file_is_one_clear_error(
    start: Callable, disk: Path
) -> None:
    before = mounted(disk, "nr_inodes=2")
    job = start("print('never')", *TWO, before=before, env={"XLA_RUN_STATE_DIR": str(disk)})
    ended = job.end()
    assert ended.code == 71 and "never" not in ended.out
    assert "No space left on device; set XLA_RUN_STATE_DIR to" in ended.err
    assert "Traceback" not in ended.err


_NAMES = ("MASTER_ADDR", "XLA_RUN_COORDINATOR", "XLA_RUN_CONTROL")
_ADDRESSES = f"""
import socket
meet()
if RANK == 1:
    print(socket.gethostbyname(socket.gethostname()))
    for name in {_NAMES}: print(os.environ[name])
    os.kill(os.getpid(), 9)
time.sleep(60)
"""


def test_the_ranks_of_one_host_meet_on_loopback_whatever_its_name_says(
    start: Callable, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 odd-name\n")
    before = surrounded(
        "--mount --uts", f"mount --bind {tmp_path}/hosts /etc/hosts && hostname odd-name"
    )
    ended = start(_ADDRESSES, *TWO, env=GLOO, before=before).end()
    assert ended.code == 137 and "rank 1 (host odd-name" in ended.err
    first, *addresses = [line.removeprefix("[1] ") for line in ended.out.splitlines()]
    assert first == "127.0.1.1"
    assert [address.split(":")[0] for address in addresses] == ["127.0.0.1"] * 3


def test_several_interfaces_do_not_matter(start: Callable) -> None:
    interfaces = " && ".join(
        f"ip link add in{n} type veth peer name out{n} && ip addr add 10.{n}.0.1/16 dev in{n} "
        f"&& ip link set in{n} up"
        for n in range(3)
    )
    before = surrounded("--net", f"ip link set lo up && {interfaces}")
    ended = start(
        _ADDRESSES.replace("socket.gethostbyname(socket.gethostname())", "0"),
        *TWO,
        env=GLOO,
        before=before,
    ).end()
    assert ended.code == 137 and "rank 1 (host" in ended.err
    _, *addresses = [line.removeprefix("[1] ") for line in ended.out.splitlines()]
    assert [address.split(":")[0] for address in addresses] == ["127.0.0.1"] * 3


# ---- what a job is started with ----------------------------------------------------------------


def test_a_command_line_and_an_environment_of_2_mb_start(tmp_path: Path, start: Callable) -> None:
    # Linux takes 128 KiB for one argument and 2 MiB for all of a command.
    words = [f"{index:06d}.tar" * 1000 for index in range(150)]
    variables = tmp_path / "variables"
    lines = [f"V{index}={'x' * 100_000}" for index in range(10)]
    variables.write_text("\n".join([*lines, f"LARGE={'y' * 1_000_000}"]))
    job = start(
        """
        print(len(sys.argv[1:]), sum(map(len, sys.argv[1:])), sys.argv[-1][:10])
        print(sum(len(os.environ["V%d" % n]) for n in range(10)), len(os.environ["LARGE"]))
        """,
        *(*TWO, "--env-file", str(variables)),
        arguments=words,
    )
    ended = job.end()
    assert ended.code == 0, ended.err[:2000]
    assert sorted(ended.out.splitlines()) == [
        *("[0] 1000000 1000000", "[0] 150 1500000 000149.tar"),
        *("[1] 1000000 1000000", "[1] 150 1500000 000149.tar"),
    ]


def test_the_options_of_the_script_are_the_scripts(start: Callable) -> None:
    words = ["--lr", "1", "--log-dir", "x", "-n", "7", "--help"]
    job = start("print(*sys.argv[1:])", "-n", "2", arguments=words, dash=False)
    ended = job.end()
    assert ended.code == 0
    assert sorted(ended.out.splitlines()) == [f"[{r}] {' '.join(words)}" for r in range(2)]


def test_a_module_runs_as_ranks(start: Callable) -> None:
    job = start("print(__name__, sys.argv[1:])", "-n", "2", "-m", arguments=["--lr"], module=True)
    ended = job.end()
    assert sorted(ended.out.splitlines()) == [f"[{r}] __main__ ['--lr']" for r in range(2)]


def test_ranks_read_no_input_unless_one_is_chosen(start: Callable) -> None:
    body = "print(repr(sys.stdin.read()))"
    assert sorted(start(body, *TWO, stdin=b"data").end().out.splitlines()) == ["[0] ''", "[1] ''"]
    chosen = start(body, *TWO, "--stdin", "1", stdin=b"data").end()
    assert sorted(chosen.out.splitlines()) == ["[0] ''", "[1] 'data'"]
    assert start(body, "-n", "1", stdin=b"data").end().out == "'data'\n"


def test_lines_have_their_time_where_that_is_asked_for(run: Callable) -> None:
    ended = run("print('hello')", *TWO, "--timestamps")
    assert re.fullmatch(r"(\d\d:\d\d:\d\d\.\d{3} \[[01]\] hello\n){2}", ended.out), ended.out
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} 2 ranks on", ended.err)


def test_a_job_that_takes_longer_than_its_time_limit_is_stopped(run: Callable) -> None:
    ended = run(
        """
        def save(*_):
            say("saved%d" % RANK)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        time.sleep(600)
        """,
        *(*TWO, "--time-limit", "2"),
    )
    assert ended.code == 124
    assert "xla-run: the time limit of 2 s has passed" in ended.err
    assert (ended.folder / "saved0").exists() and (ended.folder / "saved1").exists()
    assert ended.seconds < 10


def test_the_error_file_of_a_program_is_in_the_report(start: Callable) -> None:
    # torch's @record, in a program that is not run by our worker, writes what torchrun reads.
    body = """
    from torch.distributed.elastic.multiprocessing.errors import record
    @record
    def main():
        if RANK == 1: raise ValueError("bad batch")
        time.sleep(60)
    main()
    """
    job = start(body, *TWO, program=True)
    ended = job.end()
    assert ended.code == 1
    assert re.search(r"xla-run: rank 1 .* raised ValueError: bad batch", ended.err)


# ---- signals and stacks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        'signal.signal(signal.SIGUSR1, lambda *_: say("requeued"))',
        "pass",
        'os.execv("/bin/sleep", ["sleep", "600"])',
    ],
    ids=["own handler", "none", "another program by exec"],
)
def test_asking_for_stacks_disturbs_no_rank(start: Callable, how: str) -> None:
    job = start(
        f"""
        meet()
        say("ready%d" % RANK)
        {how}
        time.sleep(600)
        """,
        *(*TWO, "--job-id", "asked"),
    )
    job.wait_for("ready0")
    job.wait_for("ready1")
    for _ in range(2):
        job.ask("stack", "asked")
    assert "2  " in job.ask("ps") and len(job.alive()) >= 4
    assert not (job.folder / "requeued").exists()
    assert "stopped" in job.ask("stop", "asked", "--now")
    assert job.end().code == 143


def test_stacks_may_be_asked_for_before_a_rank_can_show_any(
    start: Callable, tmp_path: Path
) -> None:
    # The rank sleeps before its main program, where it has no handler yet.
    (tmp_path / "slow.py").write_text(
        "import os, time\n"
        "os.register_at_fork(after_in_child=lambda: (open(os.environ['FOLDER'] + '/up', 'w')"
        ".write('x'), time.sleep(5)))"
    )
    env = {"XLA_RUN_PREIMPORT": "slow", "PYTHONPATH": str(tmp_path)}
    job = start("print('went on')", "-n", "1", "--job-id", "early", env=env)
    job.wait_for("up")
    assert "no stack; it is stopped, or runs no Python of ours" in job.ask("stack", "early")
    ended = job.end()
    assert ended.code == 0 and ended.out == "went on\n"


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

"""A rank that the kernel kills for memory, in a real cgroup with a real limit."""

import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_xdist.launcher.on_host.started_rank import OomWatch

CGROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 200 << 20
WATCH_AND_GROW = """
import subprocess, sys
from torch_xdist.launcher.on_host.started_rank import OomWatch
watch = OomWatch()
grow = "blocks = []\\nwhile True: blocks.append(bytearray(b'x' * (4 << 20)))"
code = subprocess.run([sys.executable, "-c", grow]).returncode
print(code, watch.killed(), watch.killed())
"""


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup of 200 MiB, of whichever version this host has; removed afterwards."""
    name = f"xla-run-test-{uuid.uuid4().hex[:8]}"
    old = CGROUPS / "memory"
    folder, limit = (
        (old / name, "memory.limit_in_bytes") if old.is_dir() else (CGROUPS / name, "memory.max")
    )
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT_BYTES))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    yield folder
    folder.rmdir()


def run_in(cgroup: Path, command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    enter = f'echo $$ > {cgroup}/cgroup.procs; exec "$@"'
    environ = {**os.environ, "XLA_RUN_PREIMPORT": "", "XLA_RUN_STATE_DIR": str(folder)}
    return subprocess.run(
        ["sh", "-c", enter, "sh", *command],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_watch_sees_a_real_kill_once(small_cgroup: Path, tmp_path: Path) -> None:
    done = run_in(small_cgroup, [sys.executable, "-c", WATCH_AND_GROW], tmp_path)
    assert done.stdout.split() == ["-9", "True", "False"], done.stderr


def test_a_rank_that_takes_too_much_memory_is_said_to_have_run_out_of_it(
    small_cgroup: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            if os.environ["RANK"] == "1":
                print("growing", flush=True)
                blocks = []
                while True:
                    blocks.append(bytearray(b"x" * (4 << 20)))
            time.sleep(60)
            """
        )
    )
    command = [sys.executable, "-m", "torch_xdist.launcher", "--nprocs", "2", "--"]
    done = run_in(small_cgroup, [*command, sys.executable, str(script)], tmp_path)
    assert done.returncode == 137, done.stderr
    assert "rank 1" in done.stderr and "out of memory" in done.stderr


def test_a_plain_sigkill_is_not_called_out_of_memory() -> None:
    watch = OomWatch()
    victim = subprocess.Popen(["sleep", "60"])
    victim.kill()
    assert victim.wait() == -9
    assert not watch.killed()

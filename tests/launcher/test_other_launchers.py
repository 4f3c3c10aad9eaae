"""The same script under another launcher: it becomes the rank that it already is."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

_SCRIPT = """
    from torch_xdist.launcher.ways_in.spawn import launch, spawn
    def work(rank):
        return rank
    if __name__ == "__main__":
        # In one write: torchrun's ranks share a pipe, and run unbuffered.
        print(f"spawned {spawn(work, nprocs=4)} launched {launch(work)}\\n", end="")
    """


def _ended(words: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "XLA_RUN_PREIMPORT": "", "XLA_RUN_STATE_DIR": str(folder)}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env=environ,
    )


def test_spawn_under_torchrun_is_that_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = _ended(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "spawned [0] launched 0",
        "spawned [1] launched 1",
    ]


def test_spawn_under_xla_run_is_that_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    words = ["-m", "torch_xdist.launcher", "--nprocs", "2", "--", sys.executable, str(script)]
    done = _ended(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] spawned [0] launched 0",
        "[1] spawned [1] launched 1",
    ]


def test_a_command_without_nprocs_runs_once_and_may_spawn(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(_SCRIPT).replace(" launched {launch(work)}", ""))
    words = ["-m", "torch_xdist.launcher", "--", sys.executable, str(script)]
    done = _ended(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "spawned [0, 1, 2, 3]" in done.stdout

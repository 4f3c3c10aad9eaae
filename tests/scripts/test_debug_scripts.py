"""debug_run and dump_stacks, on real processes."""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from scripts_as_modules import SCRIPTS, loaded


def run(script, *words, **options):
    return subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        **options,
    )


TRAINING = """
import sys
import torch, torch_xla
x = torch.ones(2, device="xla")
for _ in range(3):
    x = x * 2
    torch_xla.sync()
print("ended with", x.tolist())
sys.exit(3)
"""


@pytest.mark.long
def test_a_run_is_noted_packed_and_keeps_its_exit_code(tmp_path):
    folder, archive = tmp_path / "results", tmp_path / "run.tar.gz"
    words = ["--outdir", folder, "--outfile", archive, "--", sys.executable, "-c", TRAINING]
    ended = run("debug_run", *words, env={**os.environ, "XLA_RUN_SECRET": "abc123"})
    assert ended.returncode == 3, ended.stderr
    assert "ended with [8.0, 8.0]" in ended.stdout == ended.stdout.replace("abc123", "")
    assert "XLA Environment:\n" in ended.stdout
    assert f"  XLA_SAVE_TENSORS_FILE={folder}/graphs\n" in ended.stdout
    assert "ended with" in (folder / "logs").read_text()
    assert "(3 unique)" not in (folder / "graph_report").read_text()
    assert (folder / "graphdir/graph_0000").read_text().startswith("IR {")
    assert "[MarkStep__Value]\n0\t1\n1\t2\n2\t3\n" in (folder / "metrics_report").read_text()
    assert (folder / "metrics_imgdir/MarkStep__Value.png").exists()
    with tarfile.open(archive) as packed:
        assert {"results/logs", "results/graph_report"} <= set(packed.getnames())


def test_a_tidy_run_leaves_the_archive_alone(tmp_path):
    archive = tmp_path / "run.tar.gz"
    words = ["--tidy", "--outfile", archive, "--", sys.executable, "-c", "print('hello')"]
    ended = run("debug_run", *words, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert ended.returncode == 0, ended.stderr
    (folder,) = [line.split()[-1] for line in ended.stderr.splitlines() if "Writing run" in line]
    assert [*tmp_path.iterdir()] == [archive]
    with tarfile.open(archive) as packed:
        assert f"{Path(folder).name}/logs" in packed.getnames()


def test_a_run_is_not_mixed_with_an_earlier_one(tmp_path):
    ended = run("debug_run", "--outdir", tmp_path, "--", "true")
    assert f"RuntimeError: Output folder must not exist: {tmp_path}; name ano" in ended.stderr
    ended = run("debug_run", "--tidy", "--", "true")
    assert "--tidy deletes what was noted; give an archive for it" in ended.stderr


def test_ctrl_c_ends_the_command_and_packs_what_is_there(tmp_path):
    folder = tmp_path / "results"
    script = "import time; print('begun', flush=True); time.sleep(600)"
    words = [sys.executable, SCRIPTS / "debug_run.py", "--outdir", folder, "--"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, sys.executable, "-c", script], **pipes) as child:
        while "begun" not in child.stdout.readline():
            pass
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert "Termination handler called!" in errors
    assert "begun" in (folder / "logs").read_text()


SLEEPERS = """
import threading, time

def waits():
    time.sleep(600)

for _ in range(3):
    threading.Thread(target=waits, daemon=True).start()
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_threads_that_do_the_same_are_shown_together():
    with subprocess.Popen([sys.executable, "-c", SLEEPERS], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"begun\n"
        deadline = time.monotonic() + 60
        while True:
            ended = run("dump_stacks", child.pid)
            # A busy machine takes a while to bring each thread there.
            if "NATIVE STACK (count=3):" in ended.stdout or time.monotonic() > deadline:
                break
        assert child.poll() is None, "the process goes on"
        child.kill()
    if "ptrace" in ended.stderr.lower():
        pytest.skip(f"gdb may not attach here: {ended.stderr.strip()[-200:]}")
    assert ended.returncode == 0, ended.stderr
    assert "NATIVE STACK (count=3):" in ended.stdout
    if shutil.which("py-spy") is None:
        assert "dump_stacks: no python frames: install py-spy" in ended.stderr


def test_stacks_of_py_spy_and_of_faulthandler_are_read():
    dump_stacks = loaded("dump_stacks")
    spy = """Process 7: python train.py
Python v3.11.7 (python3.11)

Thread 7 (idle): "MainThread"
    sleep (train.py:3)
    <module> (train.py:9)
Thread 8 (idle): "Thread-1"
    sleep (train.py:3)
    <module> (train.py:9)
"""
    (found,) = dump_stacks.merged(spy).items()
    assert found == (
        "    sleep (train.py:3)\n    <module> (train.py:9)",
        ['7 (idle): "MainThread"', '8 (idle): "Thread-1"'],
    )
    handler = """Thread 0x1 (most recent call first):
  File "a.py", line 3 in f

Current thread 0x2 (most recent call first):
  File "b.py", line 4 in g
"""
    assert dump_stacks.merged(handler) == {
        '  File "a.py", line 3 in f': ["0x1"],
        '  File "b.py", line 4 in g': ["0x2"],
    }


RANK = """
import os, subprocess, sys

def sleeps_in_the_middle():
    words = [sys.executable, {script!r}, str(os.getpid())]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=150)
    print(ended.stdout, ended.stderr)

sleeps_in_the_middle()
"""


@pytest.mark.long
def test_a_rank_tells_its_python_frames(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(script=str(SCRIPTS / "dump_stacks.py")))
    words = [Path(sys.executable).with_name("xla-run"), "-n", "1", sys.executable, script]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert "PYTHON STACK (count=1):" in ended.stdout, ended.stderr
    assert "in sleeps_in_the_middle" in ended.stdout


def test_a_process_that_is_not_there_is_named():
    number = 2**22 + 1  # The kernel gives none above 2**22.
    ended = run("dump_stacks", number)
    assert (ended.returncode, ended.stderr) == (1, f"dump_stacks: there is no process {number}\n")

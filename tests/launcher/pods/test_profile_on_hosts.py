"""`xla-run profile` over real ssh: of ranks on two hosts, and from another machine."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pod import Pod

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
MULTIPLIES = """
import jax, jax.numpy as jnp
step = jax.jit(lambda x: (x @ x).sum())
x = jnp.ones((64, 64))
while not os.path.exists(os.path.join(FOLDER, "stop")):
    with jax.profiler.TraceAnnotation("one_of_my_steps"):
        step(x).block_until_ready()
    say("up%d" % RANK)
    time.sleep(0.01)
"""
CPU = ("--env", "JAX_PLATFORMS=cpu")


def test_the_profiles_of_ranks_of_other_hosts_are_brought_here(on_hosts: Callable) -> None:
    job = on_hosts(MULTIPLIES, "--hosts", "a,b", "-n", "1", "--job-id", "wide", *CPU)
    job.wait_for("up0")
    job.wait_for("up1")
    out = job.ask("profile", "wide", "--seconds", "0.5", "--out", str(job.folder / "found"))
    assert "rank 0 (host a): " in out and "rank 1 (host b): " in out
    found = sorted(job.folder.glob("found/plugins/profile/*/*"))
    assert [path.name for path in found] == ["rank-0-a.xplane.pb", "rank-1-b.xplane.pb"]
    assert all(b"one_of_my_steps" in path.read_bytes() for path in found)
    (job.folder / "stop").write_text("x")
    assert job.end().code == 0


@pytest.mark.long
def test_a_job_of_another_machine_is_profiled_from_here(pod: Pod, tmp_path: Path) -> None:
    name, script = f"far{os.getpid()}", tmp_path / "train.py"
    script.write_text("import os, sys, time\nRANK, FOLDER = 0, sys.argv[1]\n" + UP + MULTIPLIES)
    detached = (*XLA_RUN, "--detach", "--job-id", name, *CPU, "-n", "1")
    there = [*detached, sys.executable, str(script), str(tmp_path)]
    subprocess.run([*pod.ssh.split(), "a", *there], check=True, timeout=60)
    end_s = time.monotonic() + 60
    while not (tmp_path / "up0").exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    on = ("--on", "a", "--ssh-command", pod.ssh)
    words = ("profile", *on, "--seconds", "0.5", name)
    done = subprocess.run(
        [*XLA_RUN, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob(f"profile-{name}/plugins/profile/*/*")
    assert file.name == "rank-0-a.xplane.pb" and b"one_of_my_steps" in file.read_bytes()
    assert str(file.relative_to(tmp_path)) in done.stdout
    refused = subprocess.run([*XLA_RUN, *words, "--ranks", "9"], capture_output=True, text=True)
    assert refused.returncode == 2 and f"job {name}: it has no rank 9" in refused.stderr
    subprocess.run([*XLA_RUN, "stop", *on, name], check=True, timeout=60)


UP = """
def say(name):
    open(os.path.join(FOLDER, name), "w").close()
"""

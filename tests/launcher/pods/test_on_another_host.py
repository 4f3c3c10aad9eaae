"""Jobs in the background, and `--on HOST`, over real ssh."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from pod import Pod

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.viewing import elsewhere, reader

XLA_RUN = f"{sys.executable} -m torch_xdist.launcher"
TRAINS = """
import os, time
print("first of", os.environ["RANK"], flush=True)
while True:
    time.sleep(1)
"""


def on(pod: Pod, name: str, command: str) -> str:
    """What a line of shell says on a host."""
    words = [*pod.ssh.split(), name, command]
    return subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout


def there(pod: Pod, *words: str) -> subprocess.Popen[str]:
    """A command about jobs of host a."""
    return subprocess.Popen(
        [*XLA_RUN.split(), *words, "--on", "a", "--ssh-command", pod.ssh],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(pod: Pod, *words: str) -> str:
    process = there(pod, *words)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def viewers_on_a(pod: Pod) -> str:
    return on(pod, "a", f"pgrep -f '{elsewhere.MODULE.replace('.', '[.]')}' || true")


@pytest.fixture
def job(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job that somebody has started on host a, and logged out."""
    name = f"far{os.getpid()}{time.monotonic_ns()}"
    script = tmp_path_factory.mktemp("far") / "train.py"
    script.write_text(TRAINS)
    detached = f"{XLA_RUN} --detach --job-id {name} -n 2 {sys.executable} {script}"
    assert on(pod, "a", detached) == f"{name}\n"
    return name


def test_a_job_of_another_host_is_looked_after_from_here(pod: Pod, job: str) -> None:
    assert job in said(pod, "ps")
    look = there(pod, "attach", job, "--from-start")
    assert look.stdout is not None and "first of" in look.stdout.readline()
    assert "rank 1:" in said(pod, "stack", job)
    assert said(pod, "stop", job) == f"job {job}: stopped\n"
    _, err = look.communicate(timeout=30)
    assert look.returncode == 143 and "stopped by SIGTERM" in err
    assert "first of 1" in said(pod, "logs", job)
    assert on(pod, "a", f"pgrep -f '[f]{job[1:]}' || true") == ""


def test_nothing_is_left_there_where_this_side_is_killed(pod: Pod, job: str) -> None:
    look = there(pod, "attach", job, "--from-start")
    assert look.stdout is not None and "first of" in look.stdout.readline()
    assert viewers_on_a(pod) != ""
    look.kill()
    look.communicate(timeout=30)
    end_s = time.monotonic() + 10
    while viewers_on_a(pod):
        assert time.monotonic() < end_s
        time.sleep(0.2)
    said(pod, "stop", job)


@pytest.mark.long
def test_who_follows_from_here_ends_with_the_reader_and_so_does_what_runs_there(
    pod: Pod, job: str
) -> None:
    look = there(pod, "logs", "-f", job)
    assert look.stdout is not None and "first of" in look.stdout.readline()
    look.stdout.close()
    assert look.wait(10) == reader.NO_READER
    end_s = time.monotonic() + 10
    while viewers_on_a(pod):
        assert time.monotonic() < end_s
        time.sleep(0.2)
    said(pod, "stop", job)


@pytest.mark.long
def test_both_sides_end_where_the_link_is_cut(pod: Pod, job: str) -> None:
    look = there(pod, "attach", job, "--from-start")
    assert look.stdout is not None and "first of" in look.stdout.readline()
    pod.hosts["a"].cut()
    _, err = look.communicate(timeout=60)
    assert look.returncode == ExitCode.HOST and "host a: the connection was lost" in err
    time.sleep(elsewhere.SILENT_S)
    pod.hosts["a"].mend()
    assert viewers_on_a(pod) == ""
    said(pod, "stop", job)


def test_a_job_on_hosts_in_the_background_outlives_who_started_it(on_hosts: Callable) -> None:
    job = on_hosts(
        "say('up%d' % RANK)\nthreading.Event().wait()",
        *("--hosts", "a,b", "-n", "1", "--job-id", "both", "--detach"),
    )
    assert job.process.wait(60) == 0, job.texts()
    end_s = time.monotonic() + 60
    while not all((job.folder / f"up{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < end_s, job.texts()
        time.sleep(0.05)
    assert "job both: stopped" in job.ask("stop", "both")
    assert job.gone(5.0), job.alive()

"""`xla-run profile`: of jobs that run, and of ranks that give none."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_jobs import Nodes

from torch_xdist.launcher.facts.errors import ExitCode, HostError, UsageError
from torch_xdist.launcher.viewing import profile

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
MULTIPLIES = """
def stop():
    return os.path.exists(os.path.join(FOLDER, "stop"))
if RANK == int(os.environ.get("WITHOUT_JAX", "-1")):
    say("up%d" % RANK)
    while not stop(): time.sleep(0.02)
    sys.exit()
import jax, jax.numpy as jnp
step = jax.jit(lambda x: (x @ x).sum())
x = jnp.ones((64, 64))
while not stop():
    with jax.profiler.TraceAnnotation("one_of_my_steps"):
        step(x).block_until_ready()
    say("up%d" % RANK)
    time.sleep(0.01)
"""


def asked(job: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*XLA_RUN, "profile", *words],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)},
        cwd=job.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def up(job: Any) -> None:
    job.wait_for("up0")
    job.wait_for("up1")


def ended(job: Any) -> int:
    (job.folder / "stop").write_text("x")
    return job.end().code


def test_a_job_is_profiled_from_another_terminal_and_runs_on(start: Callable) -> None:
    job = start(MULTIPLIES, "-n", "2", "--job-id", "quick", env={"JAX_PLATFORMS": "cpu"})
    up(job)
    done = asked(job, "quick", "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    assert "job quick: 0.5 s of all its ranks are being profiled" in done.stderr
    assert "to look at it: xprof --logdir profile-quick" in done.stdout
    found = sorted((job.folder / "profile-quick").glob("plugins/profile/*/*"))
    assert [re.sub(r"-[^-]*$", "", path.name) for path in found] == ["rank-0", "rank-1"]
    for path in found:
        assert f"{path.relative_to(job.folder)}" in done.stdout
        assert b"one_of_my_steps" in path.read_bytes()
    assert ended(job) == 0


def test_a_rank_that_cannot_be_profiled_says_why_and_the_others_are(start: Callable) -> None:
    environ = {"JAX_PLATFORMS": "cpu", "WITHOUT_JAX": "1"}
    job = start(MULTIPLIES, "-n", "2", "--job-id", "half", env=environ)
    up(job)
    done = asked(job, "half", "--seconds", "0.3", "--out", "mine")
    assert done.returncode == ExitCode.HOST
    assert re.search(r"rank 1 \(host .*\): no profile: it has not loaded jax\n", done.stderr)
    assert "job half: no profile of rank 1; the job runs on" in done.stderr
    assert len([*(job.folder / "mine").glob("plugins/profile/*/rank-0-*.xplane.pb")]) == 1
    done = asked(job, "half", "--ranks", "7")
    assert done.returncode == 2 and "job half: it has no rank 7" in done.stderr
    assert ended(job) == 0


def test_one_profile_is_taken_at_a_time_and_one_that_is_left_is_given_up(start: Callable) -> None:
    job = start(MULTIPLIES, "-n", "2", "--job-id", "twice", env={"JAX_PLATFORMS": "cpu"})
    up(job)
    first = subprocess.Popen(
        [*XLA_RUN, "profile", "twice", "--seconds", "30"],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)},
        cwd=job.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stderr is not None and "30 s of all its ranks" in first.stderr.readline()
    done = asked(job, "twice")
    assert done.returncode == 2
    assert "job twice: a profile of it is being taken already; wait until" in done.stderr
    # Ctrl-C lets it go at once.
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=10)
    assert not (job.folder / "profile-twice").exists()
    done = asked(job, "twice", "--seconds", "0.2")
    assert done.returncode == 0, done.stderr
    assert ended(job) == 0


def test_node_0_profiles_the_ranks_of_all_nodes(nodes: Nodes) -> None:
    job = nodes.node(0, MULTIPLIES, "-n", "1", "--job-id", "apart", "--env", "JAX_PLATFORMS=cpu")
    other = nodes.node(1, MULTIPLIES, "-n", "1", "--env", "JAX_PLATFORMS=cpu")
    for rank in (0, 1):
        nodes.wait_for(f"up{rank}", (job, other))
    done = asked(job, "apart", "--seconds", "0.3")
    assert done.returncode == 0, done.stderr
    found = sorted((job.folder / "profile-apart").glob("plugins/profile/*/*"))
    assert ["node0" in found[0].name, "node1" in found[1].name] == [True, True]
    (nodes.folder / "stop").write_text("x")
    assert [one.end().code for one in (job, other)] == [0, 0]


@pytest.mark.parametrize("seconds", ["0", "61"])
def test_no_time_and_too_long_a_time_are_refused(seconds: str) -> None:
    done = subprocess.run(
        [*XLA_RUN, "profile", "any", "--seconds", seconds], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"--seconds {seconds}: from above 0 to 60 are taken" in done.stderr


def test_ranks_are_named_by_numbers() -> None:
    assert profile.ranks_of("") is None
    assert profile.ranks_of("8, 0,8") == [0, 8]
    with pytest.raises(UsageError, match="--ranks 'a': ranks such as 0,2 are needed"):
        profile.ranks_of("a")


@pytest.mark.long
def test_a_rank_that_is_stopped_is_named_within_half_a_minute(start: Callable) -> None:
    job = start(MULTIPLIES, "-n", "2", "--job-id", "still", env={"JAX_PLATFORMS": "cpu"})
    up(job)
    (row,) = [json.loads(line) for line in job.ask("ps", "--json").splitlines()]
    os.kill(row["pids"]["1"], signal.SIGSTOP)
    began_s = time.monotonic()
    done = asked(job, "still", "--seconds", "0.3")
    assert 29.0 < time.monotonic() - began_s < 45.0
    assert done.returncode == ExitCode.HOST and "job still: no profile of rank 1;" in done.stderr
    assert len([*(job.folder / "profile-still").glob("plugins/profile/*/rank-0-*.pb")]) == 1
    os.kill(row["pids"]["1"], signal.SIGCONT)
    # What it was asked then is over, and it is asked anew.
    done = asked(job, "still", "--seconds", "0.3")
    assert done.returncode == 0, done.stderr
    assert ended(job) == 0


# ---- with a head of nothing --------------------------------------------------------------------


class Head:
    """Answers for ranks 0 and 1 on host a: `answers` by rank, `data` in parts of 4 bytes."""

    def __init__(self, answers: dict[int, dict[str, Any]], data: bytes = b"") -> None:
        self.answers, self.data = answers, data
        self.did: list[str] = []

    def __call__(self, message: dict[str, Any]) -> dict[str, Any]:
        self.did.append(message["do"])
        match message["do"]:
            case "begin":
                return {"id": "1", "hosts": {"0": "a", "1": "a"}, "all": 2}
            case "look":
                return {"answers": {str(rank): told for rank, told in self.answers.items()}}
            case "part":
                data = self.data[message["at"] : message["at"] + 4]
                return {"data": base64.b64encode(data).decode()}
        return {}


def told(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "note": ""}


def filed(head: Head, out: Path, seconds: float = 0.01) -> None:
    profile.file_pieces("j", profile.pieces("j", head, seconds, None, python_calls=False), out)


def test_a_rank_that_does_not_answer_is_named_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "_ANSWER_S", 0.3)
    head = Head({0: told(b"whole file")}, b"whole file")
    began_s = time.monotonic()
    with pytest.raises(HostError, match="job j: no profile of rank 1; the job runs on"):
        filed(head, tmp_path / "out")
    assert time.monotonic() - began_s < 15
    assert "rank 1 (host a): no profile: no answer within" in capsys.readouterr().err
    (file,) = tmp_path.glob("out/plugins/profile/*/*")
    assert file.name == "rank-0-a.xplane.pb" and file.read_bytes() == b"whole file"
    assert head.did[-1] == "over"


def test_nothing_is_left_of_a_profile_that_stops_coming(tmp_path: Path) -> None:
    head = Head({0: {**told(b"whole file")}}, b"whole")
    with pytest.raises(HostError, match="rank 0: its profile stopped coming after 5 of 10 bytes"):
        filed(head, tmp_path / "out")
    assert [*tmp_path.iterdir()] == [] and head.did[-1] == "over"


def test_a_job_that_ends_meanwhile_is_said_to_have(tmp_path: Path) -> None:
    head = Head({})

    def gone(message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] != "begin":
            raise HostError("UNAVAILABLE")
        return head(message)

    with pytest.raises(HostError, match="job j: it has ended, or this attempt of it, before its"):
        filed(gone, tmp_path / "out")  # type: ignore[arg-type]


def test_a_launcher_that_does_not_answer_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="job j: its launcher did not answer in time; see"):
        filed(lambda _: {"silent": True}, tmp_path)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    out = tmp_path / "file"
    out.write_text("x")
    both = {0: told(b"data"), 1: told(b"data")}
    with pytest.raises(UsageError, match=r"--out .*file: the profile cannot be written there: "):
        filed(Head(both, b"data"), out)


def test_what_comes_from_another_machine_cannot_be_put_elsewhere(tmp_path: Path) -> None:
    facts = {"piece": "part", "rank": 0, "host": "../../b", "of": 4, "note": ""}
    data = base64.b64encode(b"data").decode()
    profile.file_pieces("j", [{**facts, "at": 0, "data": data}], tmp_path / "out")
    (file,) = tmp_path.rglob("*.pb")
    assert file.name == "rank-0-------b.xplane.pb" and file.parent.parent.name == "profile"
    with pytest.raises(HostError, match="a part of a profile at 4 does not follow the last one"):
        profile.file_pieces("j", [{**facts, "at": 4, "data": data}], tmp_path / "out")


def test_pieces_are_lines_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    profile.print_pieces([{"piece": "begin"}])
    (line,) = capsys.readouterr().out.splitlines()
    assert profile._piece(line.encode()) == json.loads(line) == {"piece": "begin"}
    with pytest.raises(HostError, match="the command there says b'motd', which is no piece of a"):
        profile._piece(b"motd")

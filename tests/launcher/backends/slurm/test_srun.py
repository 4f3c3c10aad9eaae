"""The way by srun, without a Slurm: its command, and its words for what goes wrong.

What it does with a real one is in tests/launcher/test_on_slurm.py.
"""

import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from torch_xdist.launcher.backends.backend import Plane
from torch_xdist.launcher.backends.over_command import HostsOverCommand
from torch_xdist.launcher.backends.slurm.srun import Srun, srun_environ
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.host_list import Host

NODE = Host("n2", slots=2)
CANCELLED = "slurmstepd: error: *** STEP 7.1 ON n2 CANCELLED AT 2026-11-23T22:12:58 ***"
TASK = "srun: error: n2: task 0: Killed"
NO_STEP = "srun: error: Unable to create step for job 7: Invalid job id specified"


def way(program: Sequence[str] = ("srun", "--jobid=7")) -> Srun:
    return Srun(program, {"A": "1"})


def test_the_command_is_one_step_on_one_node_without_a_shell() -> None:
    words = HostsOverCommand(way(), [NODE], "/opt/my python", {}).command(0)
    assert words[:2] == ["srun", "--jobid=7"]
    wanted = {"--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n2", "--unbuffered"}
    assert wanted <= {*words}
    assert words[-4:-1] == ["/opt/my python", "-P", "-c"]


def test_srun_has_variables_of_its_own() -> None:
    assert way().environ() == {"A": "1"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([NO_STEP], f"Slurm runs no step there: {NO_STEP}; see whether its job still runs, with s"),
        (["srun: Job step aborted", CANCELLED, TASK], f"Slurm runs no step there: {CANCELLED}; "),
        (["ImportError: x", "srun: error: n2: task 0: Exited with exit code 1"], ""),
        (["its stream ended"], ""),
    ],
)
def test_a_step_that_does_not_come_is_told_from_an_agent_that_fails(
    said: list[str], why: str
) -> None:
    told = way().why_unreached(NODE, 1, said)
    assert told.startswith(why) and bool(told) == bool(why)


def test_a_node_without_the_interpreter_is_told_by_the_line_that_says_so() -> None:
    line = "slurmstepd: error: execve(): /no/python: No such file or directory"
    task = "srun: error: n2: task 0: Exited with exit code 2"
    assert way().why_no_python(2, [line, task]) == line
    assert way().why_no_python(1, ["ImportError: x", task]) == ""


def test_the_first_error_of_srun_is_why_a_node_is_lost() -> None:
    node = "srun: error: Node failure on n2"
    assert way().why_lost(137, ["srun: got SIGCONT", node, CANCELLED, TASK]) == node
    assert way().why_lost(0, ["a line of a rank"]) == ""
    assert way().why_lost(137, ["srun: got SIGCONT", TASK]) == TASK
    assert way().why_lost(-9, ["a line of a rank"]) == "srun ended with code -9"


def test_a_step_that_waits_for_others_is_shown() -> None:
    busy = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)"
    assert way().is_own(busy) and way().is_news(busy)
    assert way().is_own(TASK) and not way().is_news(TASK)


def test_only_what_a_step_waits_for_is_shown_of_sruns_own_lines(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\necho '{NO_STEP}, retrying' >&2; echo '{TASK}' >&2\n")
    srun.chmod(0o755)
    heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    plane = Plane(None, lambda _, message, __: heard.put(dict(message)))  # type: ignore[arg-type]
    agent = HostsOverCommand(way([str(srun)]), [NODE], "python", {}).start(0, "job", "cold", "M=1")
    agent.connect(plane, {"host_index": 0, "beat_s": 1, "lost_s": 5}, None)
    assert heard.get(timeout=10) == {"op": "note", "text": f"[n2] {NO_STEP}, retrying"}
    assert heard.get(timeout=10)["op"] == "gone"
    agent.end()


def test_a_machine_without_srun_is_named() -> None:
    agents = HostsOverCommand(way(["/no/srun"]), [NODE], "python", {})
    with pytest.raises(HostError, match=r"host n2: /no/srun cannot be started here \(No such .*wh"):
        agents.start(0, "job", "cold", "M=1")


def test_the_variables_of_srun_hold_no_option_and_no_login() -> None:
    environ = {
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_LABELIO": "1",
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n1",
        "SBATCH_REQUEUE": "1",
        "SSH_CONNECTION": "a 1 b 22",
        "HOME": "/me",
    }
    assert srun_environ(environ) == {"SLURM_CONF": "/etc/slurm.conf", "HOME": "/me"}

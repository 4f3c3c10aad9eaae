"""What nodes must have in common, and the words and code for each thing they have not."""

from dataclasses import replace
from typing import Any

import pytest

from torch_xdist import __version__
from torch_xdist.launcher.backends.introduction import introduction, refusal
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job

HOSTS = [Host("node0", slots=2), Host("node1", slots=2), Host("node2", slots=2)]
JOB = Job("script", ["/data/train.py", "--lr", "1"], 6, hosts=HOSTS, way="nodes")


def test_the_same_command_in_another_folder_fits() -> None:
    there = replace(JOB, argv=["/data/me/train.py", "--lr", "1"], cwd="/data/me", job_id="other")
    assert refusal(introduction(there, 2, "b", "5e"), JOB) is None


@pytest.mark.parametrize(
    ("told", "code", "words"),
    [
        (
            {"version": "0.1"},
            ExitCode.PREFLIGHT,
            f"it has torch-xdist 0.1, and node 0 has {__version__}; install the same on all",
        ),
        (
            {"nodes": 4},
            ExitCode.USAGE,
            "it was started with --nnodes 4, and node 0 with --nnodes 3; give the same number",
        ),
        ({"node": 0}, ExitCode.USAGE, "--node-rank 0: a number from 1 to 2 is needed"),
        ({"node": 3}, ExitCode.USAGE, "--node-rank 3: a number from 1 to 2 is needed"),
        ({"ranks": 1}, ExitCode.USAGE, "it has -n 1, and node 0 has -n 2; give the same number"),
        (
            {"command": ["train.py", "--lr", "2"]},
            ExitCode.USAGE,
            "it runs the script `train.py --lr 2`, and node 0 runs the script `train.py --lr 1`",
        ),
        (
            {"kind": "program"},
            ExitCode.USAGE,
            "it runs the program `train.py --lr 1`, and node 0 runs the script `train.py --lr 1`",
        ),
        ({"op": "hello"}, ExitCode.INTERNAL, "it does not introduce itself as a node"),
        ({"node": "1"}, ExitCode.INTERNAL, "it does not introduce itself as a node"),
        ({"command": 7}, ExitCode.USAGE, "it runs the script ``, and node 0 runs"),
    ],
)
def test_what_differs_is_named(told: dict[str, Any], code: int, words: str) -> None:
    found = refusal({**introduction(JOB, 1, "b", "5e"), **told}, JOB)
    assert found is not None and found[0] == code
    assert found[1].startswith(words)


def test_a_password_in_a_command_is_not_shown() -> None:
    told = {**introduction(JOB, 1, "b", "5e"), "command": ["train.py", "pg://me:hush@db"]}
    found = refusal(told, JOB)
    assert found is not None and "pg://***@db" in found[1]


def test_a_check_and_a_job_do_not_take_part_in_each_other() -> None:
    node = introduction(JOB, 1, "b", "5e")
    for told, is_check, words in (
        (node, True, "it is a job, and node 0 is a check; start the same on all nodes"),
        ({**node, "op": "check"}, False, "it is a check, and node 0 is a job; start the same"),
    ):
        found = refusal(told, JOB, is_check=is_check)
        assert found is not None and found[0] == ExitCode.USAGE and found[1].startswith(words)


def test_a_check_takes_a_node_of_another_release_and_shows_that() -> None:
    told = {**introduction(JOB, 1, "b", "5e"), "op": "check", "version": "0.1"}
    assert refusal(told, JOB, is_check=True) is None

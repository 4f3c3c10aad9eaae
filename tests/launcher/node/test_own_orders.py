"""Whatever a head orders, a node runs its own command, where and with what it was told itself."""

from typing import Any

import pytest

from torch_xdist.launcher.facts.errors import ProtocolError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.node.own_orders import OwnOrders

JOB = Job(
    "script",
    ["/data/me/train.py", "--lr", "1"],
    4,
    cwd="/data/me",
    sys_path=["/data/me"],
    env={"MINE": "1"},
    hosts=[Host("node0", slots=2), Host("node1", slots=2)],
    way="nodes",
)
RANKS = [
    {"rank": rank, "env": {"RANK": str(rank)}, "cores": [rank], "threads": 1} for rank in (2, 3)
]
START = {
    "op": "start",
    "time_s": 1e9,
    "tee": [2],
    "stdin_rank": 0,
    "ranks": RANKS,
    "log_folder": "job.2",
}
CONFIG = {"op": "config", "device": "CPU", "beat_s": 2, "lost_s": 10}


@pytest.fixture
def orders() -> OwnOrders:
    made = OwnOrders(JOB, 1, "10.0.0.2", "job", 3, b"\x0f" * 32)
    made.log_root = "/logs"
    return made


def test_the_command_is_that_of_this_node(orders: OwnOrders) -> None:
    task = {"kind": "function", "argv": ["rm", "-r", "/"], "sys_path": ["/evil"]}
    evil = {"task": task, "env": {"LD_PRELOAD": "x"}, "cwd": "/", "log_dir": "/etc"}
    order = orders.own({**START, **evil, "is_own_log_dir": True})
    assert order is not None
    beat_s = JOB.timeouts.beat_s
    assert order["task"] == {
        "kind": "script",
        "argv": JOB.argv,
        "sys_path": JOB.sys_path,
        "beat_s": beat_s,
    }
    assert (order["env"], order["cwd"], order["stdin_rank"]) == (JOB.env, "/data/me", None)
    assert (order["log_dir"], order["is_own_log_dir"]) == ("/logs/job.2/attempt-3", True)


def test_a_head_says_who_ranks_are_and_not_what_libraries_they_load(orders: OwnOrders) -> None:
    evil = {"LD_PRELOAD": "x", "PYTHONPATH": "x", "PATH": "x", "TPU_LIBRARY_PATH": "x"}
    mine = {"XLA_RUN_SECRET": "00", "TORCHELASTIC_ERROR_FILE": "/etc/passwd", "XLA_FLAGS": "x"}
    known = {"RANK": "2", "WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "1", "TPU_PROCESS_PORT": "8"}
    first = {**RANKS[0], "env": {**evil, **mine, **known}}
    order = orders.own({**START, "ranks": [first, RANKS[1]]})
    assert order is not None
    assert order["ranks"][0]["env"] == {
        **known,
        "XLA_RUN_SECRET": "0f" * 32,
        "XLA_RUN_LOG_DIR": "/logs/job.2/attempt-3",
        "TORCHELASTIC_ERROR_FILE": "/logs/job.2/attempt-3/rank-2.error.json",
    }


def test_an_agent_that_keeps_no_logs_is_given_no_folder(orders: OwnOrders) -> None:
    orders.log_root = ""
    order = orders.own(START)
    assert order is not None
    assert (order["log_dir"], order["is_own_log_dir"]) == ("", False)


def test_the_facts_of_this_machine_are_its_own(orders: OwnOrders) -> None:
    told = {**CONFIG, "host_index": 0, "hosts": 9, "named": "6.6.6.6", "keeps_logs": False}
    own = {"host_index": 1, "hosts": 2, "named": "10.0.0.2", "keeps_logs": True}
    assert orders.own(told) == {**CONFIG, **own}


def test_the_head_says_how_often_it_wants_to_hear_of_the_ranks(orders: OwnOrders) -> None:
    orders.own({**CONFIG, "beat_s": 0.5})
    order = orders.own(START)
    assert order is not None and order["task"]["beat_s"] == 0.5


@pytest.mark.parametrize("op", ["payload", "coordinate", "lost", "drained", "shell"])
def test_what_a_head_has_no_business_to_order_is_left_out(orders: OwnOrders, op: str) -> None:
    assert orders.own({"op": op}) is None


@pytest.mark.parametrize("op", ["release", "stop", "stacks", "bye"])
def test_what_is_of_no_machine_is_passed_on(orders: OwnOrders, op: str) -> None:
    assert orders.own({"op": op, "signal": 15}) == {"op": op, "signal": 15}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({**START, "ranks": RANKS[:1]}, "node 0 orders 1 ranks, and -n says 2"),
        ({**START, "ranks": [{"rank": "../x"}] * 2}, "node 0 says what cannot be read"),
        ({**START, "log_folder": ".."}, "node 0 names a job id: '..' cannot name a job"),
        ({**CONFIG, "device": "/x"}, "node 0 names a device '/x', which is unknown here"),
        ({"op": "config"}, "node 0 says what cannot be read: KeyError"),
        ({"op": "reach", "address": "a:1"}, "node 0 says what cannot be read: KeyError"),
    ],
)
def test_an_order_that_cannot_be_meant_is_an_error(
    orders: OwnOrders, message: dict[str, Any], told: str
) -> None:
    with pytest.raises(ProtocolError, match=told.replace(".", r"\.")):
        orders.own(message)


def test_a_job_whose_name_is_a_path_is_an_error() -> None:
    with pytest.raises(ProtocolError, match=r"node 0 names a job id: '\.\./x' cannot"):
        OwnOrders(JOB, 1, "10.0.0.2", "../x", 0, b"s")


def test_the_end_of_a_log_is_asked_for_by_the_number_of_its_rank_alone(orders: OwnOrders) -> None:
    asked = {"op": "log_end", "rank": "3", "log_dir": "/etc"}
    assert orders.own(asked) == {"op": "log_end", "rank": 3}
    with pytest.raises(ProtocolError, match="node 0 says what cannot be read: ValueError"):
        orders.own({"op": "log_end", "rank": "../x"})


@pytest.mark.parametrize("op", ["ship", "contents", "unship"])
def test_a_node_takes_no_code(orders: OwnOrders, op: str) -> None:
    assert orders.own({"op": op, "name": "x", "number": 0, "keep": False}) is None


def test_profiles_are_asked_for_within_bounds_and_by_numbers_alone(orders: OwnOrders) -> None:
    asked = {"op": "profile", "id": "1", "seconds": 9e9, "ranks": ["3"], "python_calls": 1}
    own = {"op": "profile", "id": "1", "seconds": 60.0, "ranks": [3], "python_calls": True}
    assert orders.own({**asked, "folder": "/etc"}) == own
    part = {"op": "profile_part", "id": "1", "rank": 3, "at": 0}
    assert orders.own({**part, "at": -8, "path": "/etc"}) == part
    assert orders.own({"op": "profile_over", "id": "1"}) == {"op": "profile_over", "id": "1"}
    with pytest.raises(ProtocolError, match="node 0 says what cannot be read: ValueError"):
        orders.own({**asked, "ranks": ["../x"]})

"""What Ray is asked for, and the words for what it answers."""

import pytest

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.on_ray import request
from torch_xdist.launcher.on_ray.request import Request

ASKED = Request("auto", 2, {"CPU": 2.0, "GPU": 1.0}, "xla-run j")


def test_a_rank_gets_a_cpu_and_a_node_its_gpus() -> None:
    assert request.resources_of("", 2, None) == {"CPU": 2}
    assert request.resources_of("", 2, 4) == {"CPU": 2, "GPU": 4}


def test_what_the_user_says_wins_and_zero_leaves_it_out() -> None:
    assert request.resources_of('{"CPU": 0, "TPU": 4}', 2, None) == {"TPU": 4}


@pytest.mark.parametrize("address", ["", "auto", "10.0.0.1:6379", "ray://head", "ray://h:10001"])
def test_an_address_is_taken_as_rays_own_client_takes_it(address: str) -> None:
    assert request.way_command(address, {"CPU": 2}) == (address or "auto", '{"CPU": 2}')


@pytest.mark.parametrize("address", ["nonsense", "10.0.0.1", "ray://", "http://h:1", "h:port"])
def test_what_is_no_address_of_a_cluster_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"--ray-address .*: HOST:PORT is needed, such as 10\.0"):
        request.way_command(address, {})


@pytest.mark.parametrize("text", ["{", "[1]", '{"CPU": "2"}', '{"CPU": -1}', '{"CPU": true}'])
def test_resources_that_are_no_amounts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--ray-resources .* a JSON object of numbers from 0 up"):
        request.resources_of(text, 2, None)


def test_a_request_is_that_of_its_job_and_travels_as_json() -> None:
    job = Job(
        kind="program",
        argv=["true"],
        nprocs=4,
        job_id="j",
        hosts=request.hosts_of(2, 2),
        way="ray",
        way_command=[*request.way_command("", {"CPU": 2.0, "GPU": 1.0})],
    )
    assert request.request_of(job) == ASKED
    assert Request(**ASKED.to_json()) == ASKED
    assert job.labels() == ["node0/0", "node0/1", "node1/2", "node1/3"]


def test_a_shortage_says_what_is_needed_and_what_there_is() -> None:
    nodes = [
        {"Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4, "memory": 1e9}},
        {"Alive": False, "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 4}},
    ]
    assert request.shortage(ASKED, nodes, {"CPU": 3.0, "node:10.0.0.1": 1.0}) == (
        "2 different nodes with CPU 2, GPU 1 each are needed, and the cluster has 1 (10.0.0.1 with "
        "CPU 4), of which CPU 3 is free"
    )


def test_of_many_nodes_some_are_told_and_the_rest_counted() -> None:
    node = {"Alive": True, "NodeManagerAddress": "a", "Resources": {}}
    assert "; a with nothing; and 3 more), of" in request.shortage(ASKED, [node] * 11, {})


def test_one_node_is_not_called_different() -> None:
    assert request.needed(Request("auto", 1, {"CPU": 2.0}, "")) == "1 node with CPU 2"


def test_of_rays_words_the_last_line_is_kept_without_advice() -> None:
    error = RuntimeError("The actor died.\n\n  Worker exit: x. Some common causes include: y")
    assert request.words_of(error) == "Worker exit: x."
    assert request.words_of(RuntimeError()) == "RuntimeError"
    assert request.words_of(RuntimeError("x" * 300)) == "x" * 200 + "..."

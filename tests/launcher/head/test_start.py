"""How hosts come together, with agents that only note what they are told."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from growth import is_linear

from torch_xdist.launcher.facts.devices import Found
from torch_xdist.launcher.facts.errors import HostError, PreflightError
from torch_xdist.launcher.facts.host import VERSION, HostFacts
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.placement import Meeting
from torch_xdist.launcher.head.hosts import Hosts, HostState
from torch_xdist.launcher.head.start import Start


class Gathered:
    """Hosts with a rank each, two if not more, and all that was said to them."""

    def __init__(self, names: Sequence[str] = ("a", "b"), **facts: Any) -> None:
        hosts = [Host(name, slots=1) for name in names]
        self.job = Job("program", ["true"], len(names), job_id="j", hosts=hosts)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.lines: list[str] = []
        # No agent is spoken to but through `send`.
        states = [HostState(i, None, range(i, i + 1), n) for i, n in enumerate(names)]  # type: ignore[arg-type]
        for state in states:
            state.send = self._sender(state.name)
        self.hosts = Hosts(states)
        meeting = Meeting("ssh:h", secret=b"x")
        self.start = Start(
            self.job, 0, self.hosts, meeting, "/l/j/attempt-0", self.lines.append, self.lines.append
        )
        self.facts = {"port": 7, "cores": (0,), "log_root": "/tmp/logs", **facts}

    def _sender(self, name: str) -> Any:
        def send(message: Mapping[str, Any], blob: bytes) -> None:
            self.told.append((name, dict(message)))

        return send

    def hello(self, index: int, version: int = VERSION, **facts: Any) -> None:
        made = HostFacts(address=f"10.0.0.{index}", **{**self.facts, **facts})
        message = {"version": version, "facts": made.to_json()}
        self.start.greet(self.hosts[index], message)

    def ops(self) -> list[tuple[str, str]]:
        return [(name, message["op"]) for name, message in self.told]


def test_ranks_start_when_all_hosts_are_there_and_reach_the_first() -> None:
    gathered = Gathered()
    gathered.hello(1)
    assert [host.name for host in gathered.start.absent()] == ["a"] and not gathered.told
    gathered.hello(0)
    assert gathered.told == [("a", {"op": "coordinate", "world_size": 2, "host": "10.0.0.0"})]
    gathered.start.serve("10.0.0.0:99")
    assert gathered.ops()[1:] == [("b", "reach")]
    gathered.start.reach(gathered.hosts[1], "")
    assert gathered.ops()[2:] == [("a", "start"), ("b", "start")]
    env = gathered.told[-1][1]["ranks"][0]["env"]
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.0", "7")
    assert env["XLA_RUN_COORDINATOR"] == "10.0.0.0:99"
    assert gathered.lines == ["2 ranks on 2 hosts, CPU (TCP)"]


def test_each_host_keeps_logs_of_its_own() -> None:
    gathered = Gathered()
    gathered.hello(0)
    gathered.hello(1, log_root="/scratch/logs")
    gathered.start.serve("10.0.0.0:99")
    gathered.start.reach(gathered.hosts[1], "")
    found = [(message["log_dir"], message["is_own_log_dir"]) for _, message in gathered.told[2:]]
    assert found == [("/tmp/logs/j/attempt-0", True), ("/scratch/logs/j/attempt-0", True)]


def test_a_host_that_can_keep_no_logs_is_one_warning() -> None:
    gathered = Gathered()
    gathered.hello(0, log_root="", why_no_logs="it is full")
    assert gathered.lines == ["warning: host a: no logs are kept there: it is full"]
    assert gathered.start.log_dir_on(gathered.hosts[0]) == ""


def test_an_agent_of_another_version_ends_the_job() -> None:
    with pytest.raises(PreflightError, match="host a: the agent speaks version 1 of the control"):
        Gathered().hello(0, version=1)


def test_a_host_without_a_way_to_the_first_ends_the_job() -> None:
    gathered = Gathered()
    gathered.hello(0)
    gathered.hello(1)
    gathered.start.serve("10.0.0.0:99")
    told = r"host b cannot reach host a at 10.0.0.0:99 \(timed out\); hosts must reach each other"
    with pytest.raises(HostError, match=told):
        gathered.start.reach(gathered.hosts[1], "timed out")


def test_where_no_address_can_be_named_none_is_asked_for() -> None:
    gathered = Gathered()
    gathered.job.way = "slurm"
    gathered.hello(0)
    gathered.hello(1)
    gathered.start.serve("10.0.0.0:99")
    with pytest.raises(HostError, match=r"open the firewall between them$"):
        gathered.start.reach(gathered.hosts[1], "timed out")


def test_a_first_host_without_an_address_ends_the_job() -> None:
    gathered = Gathered()
    gathered.hello(1)
    with pytest.raises(HostError, match=r"host a: 10\.0\.0\.0 is no address of it; name one that"):
        gathered.hello(0, port=0)


def test_the_device_is_what_all_hosts_have() -> None:
    gpus = Found({"CUDA": 1, "TPU": 0}, {"CUDA": True})
    gathered = Gathered(found=gpus)
    gathered.hello(0)
    gathered.hello(1)
    assert gathered.job.device == "CUDA"


def all_said(hosts: int) -> tuple[Gathered, Callable[[], None]]:
    """So many hosts, and what lets them all say hello, the first one first, and reach it."""
    gathered = Gathered([f"host{index}" for index in range(hosts)])

    def say() -> None:
        for index in range(hosts):
            gathered.hello(index)
        gathered.start.serve("10.0.0.0:99")
        for state in list(gathered.hosts)[1:]:
            gathered.start.reach(state, "")

    return gathered, say


def test_each_host_adds_the_same_work_to_a_rendezvous() -> None:
    assert is_linear(lambda hosts: all_said(hosts)[1])


def test_what_a_host_is_told_does_not_grow_with_their_number() -> None:
    def start_order(hosts: int) -> int:
        gathered, say = all_said(hosts)
        say()
        name, message = gathered.told[-1]
        assert (name, message["op"]) == (f"host{hosts - 1}", "start")
        return len(json.dumps(message))

    assert start_order(200) - start_order(50) < 100


def test_the_host_of_a_rank_is_found_by_its_place() -> None:
    states = [HostState(0, None, range(2, 5), "a"), HostState(1, None, range(5, 6), "b")]  # type: ignore[arg-type]
    assert [Hosts(states).of_rank(rank).name for rank in (2, 4, 5)] == ["a", "a", "b"]

"""What an agent finds out about its own machine."""

import os
import socket

import pytest

from torch_xdist.launcher.on_host import host_facts


def test_a_host_that_is_alone_meets_on_loopback() -> None:
    facts = host_facts.measure("CPU")
    assert (facts.address, facts.name) == ("127.0.0.1", socket.gethostname())
    assert facts.port > 0 and set(facts.cores) == os.sched_getaffinity(0)
    assert facts.memory_bytes > 1 << 20


def test_among_others_it_is_where_the_head_came_to() -> None:
    assert host_facts.own_address({"SSH_CONNECTION": "10.0.0.9 4711 10.0.0.1 22"}) == "10.0.0.1"


@pytest.mark.parametrize("came_to", ["127.0.0.1", "::1", "fe80::1%eth0"])
def test_an_address_that_gloo_cannot_use_is_none(came_to: str) -> None:
    address = host_facts.own_address({"SSH_CONNECTION": f"x 1 {came_to} 22"})
    assert ":" not in address


def test_an_address_that_is_not_its_own_has_no_port() -> None:
    facts = host_facts.measure("CPU", alone=False, address="192.0.2.7")
    assert (facts.address, facts.port) == ("192.0.2.7", 0)


@pytest.mark.parametrize(("leads_to", "is_own"), [("10.0.0.7", True), ("10.0.0.8", False)])
def test_a_node_of_slurm_is_where_its_name_leads_if_that_is_its_own(
    monkeypatch: pytest.MonkeyPatch, leads_to: str, is_own: bool
) -> None:
    monkeypatch.setattr(host_facts.addresses, "of_name", {"n7": [leads_to]}.__getitem__)
    monkeypatch.setattr(host_facts, "_is_own", "10.0.0.7".__eq__)
    assert (host_facts.own_address({"SLURMD_NODENAME": "n7"}) == leads_to) is is_own


def test_a_node_whose_name_leads_nowhere_is_at_its_way_out() -> None:
    assert host_facts.own_address({"SLURMD_NODENAME": "no such"}) == host_facts.own_address({})


@pytest.mark.parametrize(
    ("came_to", "address"),
    [("fd00::7", "fd00::7"), ("fe80::7%eth0", "fd00::9"), ("::1", "fd00::9"), ("", "fd00::9")],
)
def test_where_there_is_no_ipv4_it_is_found_by_ipv6(
    monkeypatch: pytest.MonkeyPatch, came_to: str, address: str
) -> None:
    ways = {"192.0.2.1": "", "2001:db8::1": "fd00::9"}
    monkeypatch.setattr(host_facts, "_way_out", lambda elsewhere: ways[elsewhere[0]])
    environ = {"SSH_CONNECTION": f"fd00::1 5 {came_to} 22"} if came_to else {}
    assert host_facts.own_address(environ) == address

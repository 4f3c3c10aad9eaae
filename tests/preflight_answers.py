"""Answers of hosts that are well, to be spoiled by tests."""

from typing import Any

from torch_xdist.launcher.facts.devices import Found
from torch_xdist.launcher.facts.host import HostFacts
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.preflight.inquiry import Answer
from torch_xdist.launcher.preflight.judge import Plan

VERSIONS = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "libtpu": "",
    "torch-xdist": "2.9.0",
    "numpy": "2.1.0",
}


def answer(name: str, host: HostFacts | None = None, **parts: Any) -> Answer:
    """A host that is well but for these parts of its facts; of a dict what is given is changed."""
    facts: dict[str, Any] = {
        "host": (host or HostFacts(name, f"10.0.0.{ord(name[-1])}", 61000, (0, 1))).to_json(),
        "versions": VERSIONS,
        "disk": {"logs": "/logs", "free_bytes": 62e9, "cwd": "/job", "has_cwd": True},
        "shared_memory": {"total_bytes": 25e9, "free_bytes": 25e9},
        "limits": {"open_files": 20000, "processes": None, "locked_bytes": None},
        "proxies": {},
        "holders": [],
        "tpu": [],
        "code": {},
        "failed": {},
        "slow": [],
        "ports": [61000, 40000],
        "why_no_ports": "",
    }
    for part, value in parts.items():
        facts[part] = {**facts[part], **value} if isinstance(facts[part], dict) else value
    facts["host"]["log_root"] = facts["host"]["log_root"] or "/logs"
    return Answer(name, facts["host"]["address"], 0.4, facts, clock_s=0.0, clock_error_s=0.01)


def with_device(name: str, kind: str, count: int = 4, **parts: Any) -> Answer:
    """A host with so many GPUs ("CUDA") or TPU chips."""
    found = Found({kind: count}, {kind: True})
    return answer(name, HostFacts(name, "10.0.0.1", 61000, (0, 1), found=found), **parts)


def plan(*answers: Answer, ranks: int = 1, limit_s: float = 15.0) -> Plan:
    """So many ranks on each of the hosts."""
    hosts = [Host(one.name, slots=ranks) for one in answers]
    return Plan(Job("program", [], ranks * len(hosts), device="", hosts=hosts), limit_s)

"""Asking hosts: a stand-in for ssh runs real probes on this machine, or what looks like one."""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import kill_marked

from torch_xdist.launcher.backends.over_command import HostsOverCommand
from torch_xdist.launcher.backends.ssh import Ssh
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.preflight import inquiry, judge
from torch_xdist.launcher.preflight.inquiry import Answer, Inquiry
from torch_xdist.launcher.preflight.judge import Plan
from torch_xdist.system import process_tree

QUESTION = {"device": "CPU", "alone": False, "cwd": "/", "log_dir": "/", "code": {}}
HERE = 'for last; do :; done; exec sh -c "$last"'
# Says that it is there, and no more.
HANGS = (
    "import json, sys, time; from torch_xdist.launcher.on_host.head_stream import PipesToHead;"
    "way = PipesToHead(); config = way.config().message;"
    "way.open(config, {}, lambda message, blob: None); time.sleep(300)"
)


def stand_in(folder: Path, script: str) -> list[str]:
    """An ssh that runs this; $host is the name of the host."""
    path = folder / "ssh"
    path.write_text(f'#!/bin/sh\neval "host=\\${{$(($# - 1))}}"\n{script}\n')
    path.chmod(0o755)
    return [str(path)]


def asked(
    names: Sequence[str],
    ssh: Sequence[str],
    *,
    limit_s: float = 30.0,
    address: str = "127.0.0.1",
    rates: bool = False,
    mark: str = "",
    shown: list | None = None,
) -> list[Answer]:
    hosts = [Host(name, slots=1, address=address) for name in names]
    env = dict([mark.split("=")]) if mark else {}
    backend = HostsOverCommand(Ssh(ssh), hosts, sys.executable, env, inquiry.PROBE)
    show = (lambda *said: shown.append(said)) if shown is not None else lambda *said: None
    return Inquiry(hosts, backend, QUESTION, limit_s, measures_rates=rates, show=show).run()


def test_hosts_tell_their_facts_their_clocks_and_their_ways(tmp_path: Path) -> None:
    shown: list = []
    first, second = asked(["a", "b"], stand_in(tmp_path, HERE), rates=True, shown=shown)
    for one in (first, second):
        assert one.facts is not None and one.facts["failed"] == {} and one.facts["slow"] == []
        assert one.came_s is not None and one.came_s > 0 and one.refusal == ""
        assert one.clock_s is not None and abs(one.clock_s) <= one.clock_error_s + 0.01
    assert set(first.reached or {}) == {1} and (first.reached or {})[1]["ms"] > 0
    assert set(second.reached or {}) == {0}
    assert first.rates[1]["there_bytes_per_s"] > 0 and second.rates == {}
    assert (0, 2, ["a", "b"]) in shown


def test_without_rates_no_data_is_sent(tmp_path: Path) -> None:
    first, second = asked(["a", "b"], stand_in(tmp_path, HERE))
    assert first.reached and first.rates == second.rates == {}


def test_one_host_has_no_ways(tmp_path: Path) -> None:
    (one,) = asked(["a"], stand_in(tmp_path, HERE), rates=True)
    assert one.facts and one.reached is None


def test_an_address_that_is_none_of_a_host_costs_its_ways_alone(tmp_path: Path) -> None:
    first, _ = asked(["a", "b"], stand_in(tmp_path, HERE), address="192.0.2.7")
    assert first.facts is not None and first.reached is None
    assert first.facts["why_no_ports"] == "Cannot assign requested address"


def test_a_host_that_ends_costs_its_own_answer_alone(tmp_path: Path) -> None:
    script = f'[ "$host" = b ] && {{ echo Permission denied. >&2; exit 255; }}\n{HERE}'
    first, second = asked(["a", "b"], stand_in(tmp_path, script))
    assert first.facts and not first.gone
    assert second.facts is None and second.gone_code == 73
    assert second.gone.startswith("host b: ssh cannot reach it: Permission denied.; try `ssh b`")


def test_a_host_whose_probe_cannot_start_is_told(tmp_path: Path) -> None:
    script = "echo No module named torch_xdist >&2; exit 1"
    (one,) = asked(["a"], stand_in(tmp_path, script))
    assert "its agent ended with code 1 before it answered: No module named" in one.gone


@pytest.mark.parametrize("hang", ["exec sleep 300", f"exec {sys.executable} -c '{HANGS}'"])
def test_a_host_that_hangs_is_not_waited_for_and_nothing_of_it_stays(
    tmp_path: Path, hang: str
) -> None:
    mark = f"XLA_RUN_TEST=check-{tmp_path.name}-{time.time_ns()}"
    # What is hung hears of no first line: the mark is in its environment from the start.
    before = f"export {mark}\n"
    rest = f'[ "$host" = b ] && {{ read first; {hang}; }}\n{HERE}'
    since_s = time.monotonic()
    try:
        first, second = asked(["a", "b"], stand_in(tmp_path, before + rest), limit_s=8)
        assert time.monotonic() - since_s < 30
        assert first.facts and second.facts is None and not second.gone
        found = judge.troubles([first, second], Plan(job(), 8))
        assert any("host b: " in one.text and "within 8 s" in one.text for one in found)
        end_s = time.monotonic() + 5
        while process_tree.marked(mark) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert process_tree.marked(mark) == set()
    finally:
        kill_marked(mark)


def job() -> Job:
    return Job("program", [], 2, device="CPU", hosts=[Host("a", slots=1), Host("b", slots=1)])


def test_there_is_no_ssh_here() -> None:
    with pytest.raises(HostError, match=r"host a: /no/ssh cannot be started here \(No such file"):
        asked(["a"], ["/no/ssh"])


def test_hosts_of_one_name_are_told_apart_by_their_ports() -> None:
    hosts = [Host("a", port=22), Host("a", port=23), Host("b", port=22)]
    assert inquiry.names_of(hosts) == ["a:22", "a:23", "b"]


def test_this_machine_is_asked_without_any_process() -> None:
    question = {**QUESTION, "alone": True, "address": ""}
    before = threading.active_count()
    one = inquiry.here(question, "me", 10.0)
    assert one.is_here and one.facts is not None and one.facts["ports"] == []
    assert threading.active_count() <= before + 1


# From outside, with real probes: 64 of them start on this machine's few cores, where in a pod each
# has a machine of its own. The limit is that of one who has 64 machines, times four.
@pytest.mark.timeout(180)
def test_many_hosts_are_asked_at_once(tmp_path: Path) -> None:
    names = [f"h{number}" for number in range(64)]
    since_s = time.monotonic()
    answers = asked(names, stand_in(tmp_path, HERE), limit_s=60)
    assert time.monotonic() - since_s < 60
    assert all(one.is_here and len(one.reached or {}) == 63 for one in answers)

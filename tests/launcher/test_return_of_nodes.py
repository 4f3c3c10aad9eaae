"""A node whose connection to node 0 is lost comes back, and the job goes on.

The ways of whole hosts are cut in `pods/test_lost_connections.py`; here what the other side is
told differs: a reset, an end, silence.
"""

import re
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from breakable_way import Way
from counting_job import counting, lines_of
from node_jobs import WAITS, Nodes, ends, shown

from torch_xdist.launcher.facts.errors import ExitCode

HERE = socket.gethostname()
SOON = ("--lost-after", "2", "--beat-every", "0.5")
COUNTS = counting(0.04)


@pytest.fixture
def way(nodes: Nodes) -> Iterator[Way]:
    with Way(nodes.port) as made:
        yield made


def running(nodes: Nodes, way: Way, body: str, *options: str) -> tuple[Any, Any]:
    """Both nodes, where the second one comes over the way."""
    over = ("--master-port", str(way.port))
    jobs = nodes.node(0, body, *options), nodes.node(1, body, *options, *over)
    nodes.all_on(jobs)
    return jobs


@pytest.mark.parametrize("in_order", [pytest.param(False, marks=pytest.mark.long), True])
def test_connections_that_are_ended_on_the_way_lose_no_line_and_repeat_none(
    nodes: Nodes, way: Way, in_order: bool
) -> None:
    jobs = running(nodes, way, COUNTS)
    for _ in range(3):
        way.break_all(in_order=in_order)
        time.sleep(1.2)
    head, node = ends(*jobs)
    assert (head.code, node.code) == (0, 0), head.err + node.err
    assert all(lines_of(head.out, rank) == [*range(200)] for rank in range(4))
    assert way.made >= 4
    told = rf"^connection to node1 on {HERE} lost \(.*\), waiting up to \d+ s$"
    assert len(re.findall(told, head.err, re.M)) == 3, head.err
    assert len(re.findall(rf"^node1 on {HERE} is back after \d\.\d s$", head.err, re.M)) == 3
    where = f"node 0 at 127.0.0.1:{way.port}"
    lost = rf"^connection to {where} lost \(.*\), trying for up to 30 s$"
    assert len(re.findall(lost, node.err, re.M)) == 3
    assert len(re.findall(rf"^{where} is back after \d\.\d s$", node.err, re.M)) == 3


def test_who_listens_on_the_way_reads_no_line(nodes: Nodes, way: Way) -> None:
    head, node = ends(*running(nodes, way, counting(0, 30)))
    assert (head.code, node.code) == (0, 0), head.err + node.err
    assert lines_of(head.out, 3) == [*range(30)]
    assert b"xla-run nodes" in way.passed and len(way.passed) > 3000
    assert b"line" not in way.passed


def test_silence_is_waited_for_up_to_the_limit_of_a_new_connection(nodes: Nodes, way: Way) -> None:
    jobs = running(nodes, way, COUNTS, *SOON)
    way.close()
    shown(jobs[0], "lost (no word from it for 2 s), waiting up to 28 s", 10)
    time.sleep(1)
    way.open()
    head, node = ends(*jobs)
    assert (head.code, node.code) == (0, 0), head.err + node.err
    assert all(lines_of(head.out, rank) == [*range(200)] for rank in range(4))
    assert re.search(rf"^node1 on {HERE} is back after \d\.\d s$", head.err, re.M)


def test_a_connection_that_does_not_come_back_loses_its_host_in_time(
    nodes: Nodes, way: Way
) -> None:
    jobs = running(nodes, way, WAITS, *SOON, "--reconnect-within", "5")
    way.close()
    since_s = time.monotonic()
    head, node = ends(*jobs, limit_s=12)
    assert 4 < time.monotonic() - since_s < 30
    assert [one.code for one in (head, node)] == [ExitCode.HOST, ExitCode.HOST]
    why = "no word from it for 2 s, and there was no new connection for 3 s"
    assert f"xla-run: host node1 on {HERE} (ranks 2, 3) was lost: {why}" in head.err
    assert f"xla-run: node 0 at 127.0.0.1:{way.port} was lost: {why}" in node.err


def test_without_a_grace_a_lost_connection_is_a_lost_host(nodes: Nodes, way: Way) -> None:
    jobs = running(nodes, way, WAITS, "--reconnect-within", "off")
    way.break_all()
    head, node = ends(*jobs, limit_s=10)
    assert [one.code for one in (head, node)] == [ExitCode.HOST, ExitCode.HOST]
    assert f"xla-run: host node1 on {HERE} (ranks 2, 3) was lost: its stream ended" in head.err


def test_a_node_that_was_given_up_is_not_let_back_in(nodes: Nodes) -> None:
    options = (*SOON, "--reconnect-within", "4", "--max-restarts", "1")
    head, node = nodes.running(WAITS, *options)
    node.process.send_signal(signal.SIGSTOP)
    shown(head, "restart 1 of 1", 15)
    node.process.send_signal(signal.SIGCONT)
    ended = node.end(limit_s=10)
    assert ended.code == ExitCode.HOST
    assert " was lost: " in ended.err
    assert ", and it was lost to the job, which has gone on without it" in ended.err
    forget_ranks(nodes)
    again = nodes.node(1, WAITS, *options)
    nodes.all_on((head, again))
    head.process.send_signal(signal.SIGTERM)
    assert [one.code for one in ends(head, again)] == [143, 143]


def forget_ranks(nodes: Nodes) -> None:
    """The next attempt tells anew which of them are at work."""
    for rank in range(4):
        (nodes.folder / f"on{rank}").unlink(missing_ok=True)


def test_a_new_process_takes_the_place_of_one_that_has_no_connection(
    nodes: Nodes, way: Way
) -> None:
    options = (*SOON, "--reconnect-within", "15", "--max-restarts", "1")
    jobs = running(nodes, way, WAITS, *options)
    way.close()
    shown(jobs[0], "lost (no word from it for 2 s), waiting up to 13 s", 10)
    forget_ranks(nodes)
    since_s = time.monotonic()
    again = nodes.node(1, WAITS, *options)
    shown(jobs[0], "was lost: another process has come in its place", 10)
    assert time.monotonic() - since_s < 30
    way.open()
    assert jobs[1].end(limit_s=15).code == ExitCode.HOST
    nodes.all_on((jobs[0], again))
    jobs[0].process.send_signal(signal.SIGTERM)
    assert [one.code for one in ends(jobs[0], again)] == [143, 143]


def test_a_head_that_is_stopped_for_a_while_goes_on_with_its_nodes(nodes: Nodes) -> None:
    head, node = nodes.running(COUNTS, *SOON)
    head.process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    head.process.send_signal(signal.SIGCONT)
    ended = ends(head, node)
    assert [one.code for one in ended] == [0, 0], ended[0].err + ended[1].err
    assert all(lines_of(ended[0].out, rank) == [*range(200)] for rank in range(4))


def test_a_head_that_is_killed_while_the_way_is_cut_ends_the_node_in_time(
    nodes: Nodes, way: Way
) -> None:
    head, node = running(nodes, way, WAITS, *SOON, "--reconnect-within", "6")
    way.close()
    head.process.kill()
    head.process.wait()
    since_s = time.monotonic()
    ended = node.end(limit_s=12)
    assert ended.code == ExitCode.HOST and time.monotonic() - since_s < 30
    assert head.gone(5.0), f"survivors: {head.alive()}"

"""`xla-run --nnodes` with real processes: one on each "node", all of them on this machine.

Times are measured from outside, and afterwards nothing of either node is alive.
"""

import contextlib
import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from node_jobs import SECRET, WAITS, Nodes, ends, shown

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.system import process_tree

HERE = socket.gethostname()
SOON = ("--lost-after", "2", "--beat-every", "0.5", "--reconnect-within", "0")
SAVES = """
    def save(number, frame):
        say("saved%d" % RANK)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGINT, save)
    say("on%d" % RANK)
    time.sleep(200)
"""
FACTS = """
    import json
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "XLA_RUN_SECRET")
    told = [os.environ[name] for name in names]
    say("rank%d" % RANK, json.dumps([*told, os.getcwd(), sys.argv[0], os.environ["OWN"]]))
"""


def test_ranks_are_numbered_over_the_nodes_and_each_runs_its_own_command(nodes: Nodes) -> None:
    head, node = nodes.both(FACTS)
    ended = ends(head, node)
    assert [one.code for one in ended] == [0, 0], ended[0].err + ended[1].err
    told = [json.loads((nodes.folder / f"rank{rank}").read_text()) for rank in range(4)]
    assert [one[:4] for one in told] == [
        *(["0", "0", "4", "0"], ["1", "1", "4", "0"], ["2", "0", "4", "1"], ["3", "1", "4", "1"]),
    ]
    assert {one[4] for one in told} == {"127.0.0.1"}
    folders = [str(job.folder) for job in (head, head, node, node)]
    assert [one[6] for one in told] == folders
    assert [one[7] for one in told] == [f"{folder}/train.py" for folder in folders]
    assert [one[8] for one in told] == ["of 0", "of 0", "of 1", "of 1"]
    assert "4 ranks on 2 hosts, CPU (TCP)" in ended[0].err
    assert re.search(r"^node 1 of 2 is in job \S+ of node 0 at 127.0.0.1:\d+$", ended[1].err, re.M)


def test_the_ranks_have_one_secret_that_is_not_that_of_the_nodes(nodes: Nodes) -> None:
    jobs = nodes.running(FACTS + WAITS.join(("\n    ", "")))
    told = {json.loads((nodes.folder / f"rank{rank}").read_text())[5] for rank in range(4)}
    (secret,) = told
    assert len(secret) == 64 and secret != SECRET
    for job in jobs:
        for pid in process_tree.marked(job.mark) - {job.process.pid}:
            with contextlib.suppress(OSError):
                assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{job.process.pid}/cmdline").read_bytes()
            assert SECRET.encode() not in words
    written = [path for job in jobs for path in job.folder.rglob("*") if path.is_file()]
    assert written and not any(SECRET.encode() in path.read_bytes() for path in written)
    jobs[0].process.send_signal(signal.SIGTERM)
    ends(*jobs)


def test_lines_of_all_nodes_are_one_view_on_node_0(nodes: Nodes) -> None:
    head, node = ends(*nodes.both("print('line of', RANK)"))
    assert sorted(head.out.splitlines()) == [
        *("[node0/0] line of 0", "[node0/1] line of 1"),
        *("[node1/2] line of 2", "[node1/3] line of 3"),
    ]
    assert node.out == ""


def test_each_node_keeps_the_logs_of_its_ranks(nodes: Nodes) -> None:
    head, node = ends(*nodes.both("print('line of', RANK)"))
    assert (head.log(1), node.log(2)) == ("line of 1\n", "line of 2\n")
    assert not head.log(2) and not node.log(1)


def test_a_node_that_does_not_come_is_named_and_all_end(nodes: Nodes) -> None:
    options = ("--rendezvous-timeout", "4", "--notice-after", "1")
    jobs = [nodes.node(rank, WAITS, *options, nnodes=3) for rank in (0, 2)]
    head, node = ends(*jobs, limit_s=20)
    assert (head.code, node.code) == (72, 72)
    missing = f"ranks 0-5 of 6 (host node1: not yet at 127.0.0.1:{nodes.port})"
    assert f"waiting for {missing} to arrive" in head.err
    told = "xla-run: rank 2 could not be started: rendezvous: "
    assert f"{told}{missing} did not arrive in 4 s" in head.err
    assert f"{told}{missing} did not arrive in 4 s" in node.err


def test_a_node_says_what_it_waits_for_and_gives_up_in_time(nodes: Nodes) -> None:
    ended = nodes.node(1, WAITS, "--rendezvous-timeout", "4", "--notice-after", "1").end(20)
    where = f"node 0 at 127.0.0.1:{nodes.port}"
    assert ended.code == 72
    assert re.search(f"^node 1 waits for {where}: connection refused, [12] s$", ended.err, re.M)
    assert f"xla-run: node 1: {where} was not there in 4 s: connection refused; st" in ended.err


def test_a_node_may_come_long_before_node_0(nodes: Nodes) -> None:
    node = nodes.node(1, "print('rank', RANK)", "--notice-after", "1")
    shown(node, "node 1 waits for node 0")
    head = nodes.node(0, "print('rank', RANK)")
    assert [one.code for one in ends(head, node)] == [0, 0]


def test_a_rank_that_fails_is_named_on_all_nodes(nodes: Nodes) -> None:
    jobs = nodes.both("meet()\nif RANK == 3: fault(); 1 // 0\ntime.sleep(200)")
    head, node = ends(*jobs, limit_s=30)
    assert (head.code, node.code) == (1, 1)
    named = rf"^xla-run: rank 3 \(host node1 on {HERE}, pid \d+\) raised ZeroDivisionError"
    assert re.search(named, head.err, re.M) and re.search(named, node.err, re.M)
    assert "Traceback" in head.err and "Traceback" not in node.err


def test_the_code_of_a_rank_is_that_of_every_node(nodes: Nodes) -> None:
    assert [one.code for one in ends(*nodes.both("meet(); sys.exit(7 * (RANK == 0))"))] == [7, 7]


def test_a_node_that_is_killed_is_lost_and_leaves_nothing(nodes: Nodes) -> None:
    head, node = nodes.running()
    since_s = time.monotonic()
    node.process.kill()
    node.process.wait()
    assert node.gone(5.0), f"survivors: {node.alive()}"
    ended = head.end(limit_s=15)
    assert ended.code == ExitCode.HOST and time.monotonic() - since_s < 30
    assert f"xla-run: host node1 on {HERE} (ranks 2, 3) was lost: its stream ended" in ended.err


def test_a_node_that_is_stopped_is_lost_in_time(nodes: Nodes) -> None:
    head, node = nodes.running(WAITS, *SOON)
    node.process.send_signal(signal.SIGSTOP)
    ended = head.end(limit_s=10)
    assert ended.code == ExitCode.HOST
    assert f"host node1 on {HERE} (ranks 2, 3) was lost: no word from it for 2 s" in ended.err
    # Its agent hears nothing of it any more.
    assert node.gone(5.0), f"survivors: {node.alive()}"


def test_how_long_a_side_may_be_silent_is_what_node_0_says(nodes: Nodes) -> None:
    often = nodes.node(0, WAITS, *SOON)
    node = nodes.node(1, WAITS)
    nodes.all_on((often, node))
    # A node that kept to its own 2 s between two words would be lost by now.
    time.sleep(5)
    assert often.process.poll() is None, often.texts()
    often.process.send_signal(signal.SIGSTOP)
    ended = node.end(limit_s=8)
    assert ended.code == ExitCode.HOST and "was lost: no word from it for 2 s" in ended.err
    often.process.send_signal(signal.SIGCONT)
    assert often.end(limit_s=20).code == ExitCode.HOST


def test_an_agent_of_a_node_that_is_killed_is_told(nodes: Nodes) -> None:
    head, node = nodes.running()
    (agent,) = process_tree.children(node.process.pid)
    os.kill(agent, signal.SIGKILL)
    ended = ends(head, node, limit_s=20)
    assert [one.code for one in ended] == [ExitCode.HOST, ExitCode.HOST]
    told = (
        f"xla-run: host node1 on {HERE} (ranks 2, 3) was lost: its agent is gone: its stream ended"
    )
    assert told in ended[0].err and told in ended[1].err


def test_a_head_that_is_killed_leaves_nothing_on_any_node(nodes: Nodes) -> None:
    head, node = nodes.running()
    head.process.kill()
    head.process.wait()
    assert head.gone(5.0), f"survivors: {head.alive()}"
    ended = node.end(limit_s=5)
    assert ended.code == ExitCode.HOST
    assert f"xla-run: node 0 at 127.0.0.1:{nodes.port} was lost: its stream ended" in ended.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_node_lets_all_ranks_save_and_ends_the_job(
    nodes: Nodes, rank: int, number: int, code: int
) -> None:
    jobs = nodes.running(SAVES)
    jobs[rank].process.send_signal(number)
    ended = ends(*jobs, limit_s=20)
    assert [one.code for one in ended] == [code, code]
    name = signal.Signals(number).name
    assert all(f"stopped by {name}" in one.err for one in ended)
    assert (f"node1 was told to stop by {name}" in ended[0].err) == (rank == 1)
    assert all((nodes.folder / f"saved{rank}").exists() for rank in range(4))


def test_nodes_that_are_all_told_to_stop_at_once_let_their_ranks_save(nodes: Nodes) -> None:
    slow = SAVES.replace('say("saved', 'time.sleep(1); say("saved')
    jobs = nodes.running(slow)
    for job in reversed(jobs):
        job.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert [one.code for one in ends(*jobs, limit_s=20)] == [143, 143]
    assert all((nodes.folder / f"saved{rank}").exists() for rank in range(4))


def test_a_second_ctrl_c_on_a_node_ends_the_job_at_once(nodes: Nodes) -> None:
    jobs = nodes.running("signal.signal(2, signal.SIG_IGN); say('on%d' % RANK); time.sleep(200)")
    for _ in range(2):
        jobs[1].process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert [one.code for one in ends(*jobs, limit_s=10)] == [130, 130]


def test_ctrl_c_ends_a_node_that_waits_for_node_0(nodes: Nodes) -> None:
    node = nodes.node(1, WAITS, "--notice-after", "0.5")
    shown(node, "node 1 waits for node 0")
    node.process.send_signal(signal.SIGINT)
    assert node.end(limit_s=5).code == 130


def test_ctrl_c_ends_a_head_that_waits_for_a_node(nodes: Nodes) -> None:
    head = nodes.node(0, WAITS, "--notice-after", "0.5")
    shown(head, "(host node1: not yet at")
    head.process.send_signal(signal.SIGINT)
    assert head.end(limit_s=10).code == 130


def test_a_failed_job_is_started_again_on_the_same_nodes(nodes: Nodes) -> None:
    body = "attempt = int(os.environ['XLA_RUN_ATTEMPT']); 1 // (attempt or RANK != 2)"
    head, node = ends(*nodes.both(body, "--max-restarts", "1"))
    assert (head.code, node.code) == (0, 0), head.err + node.err
    assert "restart 1 of 1 in 1 s" in head.err
    assert node.err.count("is in job") == 1


def test_a_node_that_was_lost_may_come_again_for_the_next_attempt(nodes: Nodes) -> None:
    body = """
        say("on%d" % RANK)
        if os.environ["XLA_RUN_ATTEMPT"] == "0":
            time.sleep(200)
    """
    head, node = nodes.running(body, "--max-restarts", "1", "--reconnect-within", "5")
    node.process.kill()
    node.process.wait()
    shown(head, "restart 1 of 1")
    again = nodes.node(1, body)
    assert [one.code for one in ends(head, again)] == [0, 0]


# ---- who is not let in -------------------------------------------------------------------------


def test_without_a_secret_nothing_starts(nodes: Nodes) -> None:
    for rank in (0, 1):
        ended = nodes.node(rank, WAITS, env={"XLA_RUN_SECRET": ""}).end(10)
        assert ended.code == ExitCode.USAGE
        assert "XLA_RUN_SECRET: it is not set; nodes know each other by it: make" in ended.err


def test_another_secret_is_refused_and_the_job_goes_on(nodes: Nodes) -> None:
    head = nodes.node(0, WAITS)
    stranger = nodes.node(1, WAITS, env={"XLA_RUN_SECRET": "00" * 32}).end(15)
    assert stranger.code == ExitCode.HOST
    told = f"xla-run: node 1: node 0 at 127.0.0.1:{nodes.port}: it refuses this node: XLA_RUN_SE"
    assert told in stranger.err
    node = nodes.node(1, WAITS)
    nodes.all_on((head, node))
    node.process.send_signal(signal.SIGTERM)
    ended = ends(head, node)
    assert [one.code for one in ended] == [143, 143]
    refused = "warning: a connection from 127.0.0.1 was refused: it does not know the secret"
    assert refused in ended[0].err


OTHER = {
    "rank": (1, WAITS, (), {}, ExitCode.DUPLICATE, "node 1 is there already ("),
    "nnodes": (1, WAITS, (), {"nnodes": 3}, ExitCode.USAGE, "it was started with --nnodes 3, and"),
    "ranks": (1, WAITS, ("-n", "1"), {}, ExitCode.USAGE, "it has -n 1, and node 0 has -n 2; give"),
    "command": (
        *(1, WAITS, (), {"arguments": ["--lr", "2"]}, ExitCode.USAGE),
        "it runs the script `train.py --lr 2`, and node 0 runs the script `train.py`; start the",
    ),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_node_that_does_not_fit_is_told_why_and_the_job_goes_on(nodes: Nodes, case: str) -> None:
    rank, body, options, more, code, told = OTHER[case]
    jobs = nodes.running()
    ended = nodes.node(rank, body, *options, **more).end(15)
    assert ended.code == code
    where = f"xla-run: node 0 at 127.0.0.1:{nodes.port} refuses node {rank}: "
    assert where + told in ended.err
    shown(jobs[0], f"warning: a connection from 127.0.0.1 was refused: node {rank}: {told}")
    assert all(job.process.poll() is None for job in jobs)


def test_strangers_at_the_port_disturb_nobody(nodes: Nodes) -> None:
    head = nodes.node(0, "print('rank', RANK)", "--notice-after", "0.5")
    shown(head, "(host node1: not yet at")
    kept = []
    for said in (
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        os.urandom(4096),
        b"",
        b"xla-run nodes\r\n\0",
    ):
        sock = socket.create_connection(("127.0.0.1", nodes.port), 5)
        with contextlib.suppress(OSError):
            sock.sendall(said)
        kept.append(sock)
    node = nodes.node(1, "print('rank', RANK)")
    ended = ends(head, node)
    assert [one.code for one in ended] == [0, 0]
    assert "warning: a connection from 127.0.0.1 was refused: it is no xla-run" in ended[0].err
    for sock in kept:
        sock.close()


def test_a_port_that_is_taken_has_its_own_message(nodes: Nodes) -> None:
    with socket.create_server(("127.0.0.1", nodes.port)):
        ended = nodes.node(0, WAITS).end(15)
    assert ended.code == ExitCode.HOST
    told = f"xla-run: node 0 cannot listen on 127.0.0.1:{nodes.port}: Address already in use; end"
    assert told in ended.err

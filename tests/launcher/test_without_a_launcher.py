"""A script that is started by itself on every host of a slice, as by `gcloud ... ssh --worker=all`.

The hosts are addresses of loopback on this machine; each has a `spawn` of its own, with ranks that
are real. Afterwards nothing of any host is alive.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.on_host.coordinator import free_port
from torch_xdist.system import process_tree
from torch_xdist.system.frames import encode

# What runs in each rank is `work(rank)`; the last line is what the script of each host does.
SCRIPT = """
    from torch_xdist.launcher.ways_in.spawn import spawn
    def work(rank):
        global RANK
        RANK = rank
        {body}
    if __name__ == "__main__":
        print("results", spawn(work, nprocs=int(os.environ["RANKS_HERE"])), flush=True)
"""
WAITS = "say('on%d' % rank); time.sleep(200)"
NAMES = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


@pytest.fixture
def on_slice(start: Callable, tmp_path: Path) -> Callable:
    """`on_slice(body)`: two hosts with two ranks each; `started` are those that come at all."""
    port = free_port()

    def begin(
        body: str,
        *,
        hosts: int = 2,
        ranks: Sequence[int] = (2, 2, 2),
        started: Any = None,
        **env: str,
    ) -> list[Any]:
        slice_of = {
            "PJRT_DEVICE": "CPU",
            "XLA_RUN_HOSTS": str(hosts),
            "TPU_WORKER_HOSTNAMES": ",".join(NAMES[:hosts]),
            "MASTER_PORT": str(port),
            "FOLDER": str(tmp_path),
            **env,
        }
        text = SCRIPT.format(body=body.strip().replace("\n", "\n    "))
        return [
            start(
                text, env={**slice_of, "TPU_WORKER_ID": str(host), "RANKS_HERE": str(ranks[host])}
            )
            for host in (range(hosts) if started is None else started)
        ]

    return begin


def test_run_multiprocess_gives_the_results_by_rank(start: Callable) -> None:
    script = """
        import torch_xla
        from torch_xla._internal import pjrt
        def twice(factor):
            return 2 * factor
        if __name__ == "__main__":
            print("results", pjrt.run_multiprocess(twice, 4), flush=True)
    """
    slice_of = {
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": "1",
        "XLA_RUN_HOSTS": "2",
        "FOLDER": "/tmp",
    }
    slice_of |= {"TPU_WORKER_HOSTNAMES": ",".join(NAMES[:2]), "MASTER_PORT": str(free_port())}
    hosts = [start(script, env={**slice_of, "TPU_WORKER_ID": str(host)}) for host in range(2)]
    assert [host.end().out for host in hosts] == ["results {0: 8}\n", "results {1: 8}\n"]


def wait_for(folder: Path, names: Sequence[str], limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while missing := [name for name in names if not (folder / name).exists()]:
        assert time.monotonic() < end_s, f"{missing} did not appear"
        time.sleep(0.02)


def all_on(folder: Path, ranks: int = 4) -> None:
    wait_for(folder, [f"on{rank}" for rank in range(ranks)])


def test_ranks_are_numbered_host_by_host_and_results_are_those_of_the_host(
    on_slice: Callable,
) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR")
    first, second = on_slice(f"return [os.environ[n] for n in {names}]")
    ended = first.end(), second.end()
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    for host, one in enumerate(ended):
        rows = [
            [str(2 * host + local), str(local), "4", str(host), "2", "127.0.0.1"]
            for local in range(2)
        ]
        assert one.out == f"results {rows}\n"
        where = f"this is host {NAMES[host]} (worker {host}): ranks {2 * host}, {2 * host + 1}"
        assert one.err == f"4 ranks on 2 hosts, CPU (TCP); {where}\n"


def test_all_ranks_are_told_one_port_and_one_coordinator_and_no_secret(on_slice: Callable) -> None:
    names = ("MASTER_PORT", "XLA_RUN_COORDINATOR", "XLA_RUN_SECRET")
    hosts = on_slice(f"return [os.environ[n] for n in {names}]")
    lines = {line for host in hosts for line in host.end().out.splitlines()}
    (line,) = lines
    (_, _, one), (_, _, two) = eval(line.removeprefix("results "))
    assert one == two == ""


def test_a_secret_that_the_user_has_set_is_that_of_all_ranks(on_slice: Callable) -> None:
    hosts = on_slice("return os.environ['XLA_RUN_SECRET']", XLA_RUN_SECRET="ab" * 16)
    assert {host.end().out for host in hosts} == {f"results {['ab' * 16] * 2}\n"}


def test_a_secret_that_is_none_is_refused(on_slice: Callable) -> None:
    for host in on_slice("pass", XLA_RUN_SECRET="5e5e"):
        ended = host.end()
        assert ended.code == ExitCode.USAGE
        assert "XLA_RUN_SECRET: 32 hexadecimal digits or more are needed" in ended.err


def test_the_lines_of_ranks_have_their_number_among_all(on_slice: Callable) -> None:
    hosts = on_slice("print('here')")
    lines = [line for host in hosts for line in host.end().out.splitlines() if "here" in line]
    assert sorted(lines) == [f"[{rank}] here" for rank in range(4)]


def test_a_script_may_spawn_several_times(on_slice: Callable) -> None:
    twice = "say('on%d' % rank)\n    return rank\nfirst = True"
    hosts = on_slice(twice + "\nspawn(work, nprocs=2) if __name__ == '__main__' else 0")
    for host in hosts:
        ended = host.end()
        assert ended.code == 0, ended.err
        assert ended.err.count("4 ranks on 2 hosts") == 2


def test_a_rank_that_fails_ends_the_ranks_of_the_other_host_and_is_named_there(
    on_slice: Callable, tmp_path: Path
) -> None:
    body = "say('on%d' % rank); meet(); rank == 3 and (fault(), 1 // 0); time.sleep(200)"
    first, second = on_slice(body)
    all_on(tmp_path)
    failed, other = second.end(limit_s=30), first.end(limit_s=30)
    assert (failed.code, other.code) == (1, 1)
    assert "ZeroDivisionError" in failed.err
    told = "host 127.0.0.2 (worker 1), ranks 2, 3, has ended the job: rank 3 (host "
    assert told in other.err and "raised ZeroDivisionError" in other.err
    after_s = time.monotonic() - float((tmp_path / "fault").read_text())
    assert after_s < 10


@pytest.mark.parametrize("killed", [0, 1])
def test_a_host_whose_script_is_killed_is_lost_to_the_other(
    on_slice: Callable, tmp_path: Path, killed: int
) -> None:
    hosts = on_slice(WAITS)
    all_on(tmp_path)
    hosts[killed].process.kill()
    since_s = time.monotonic()
    other = hosts[1 - killed].end(limit_s=20)
    assert time.monotonic() - since_s < 30
    assert hosts[killed].process.wait() == -signal.SIGKILL and hosts[killed].gone(5.0)
    name = f"host {NAMES[killed]} (worker {killed}), ranks {2 * killed}, {2 * killed + 1},"
    assert f"{name} has ended the job: stopped by SIGTERM" in other.err
    assert other.code == 128 + signal.SIGTERM


def test_a_host_that_is_gone_at_once_is_lost_to_all_others(
    on_slice: Callable, tmp_path: Path
) -> None:
    hosts = on_slice(WAITS, hosts=3)
    all_on(tmp_path, 6)
    # It has the head of its host in it.
    (conductor,) = process_tree.children(hosts[2].process.pid)
    os.kill(conductor, signal.SIGKILL)
    for host in hosts[:2]:
        ended = host.end(limit_s=20)
        assert ended.code == ExitCode.HOST
        told = "host 127.0.0.3 (worker 2), ranks 4, 5, was lost: its connection ended"
        assert told in ended.err
    assert hosts[2].end(limit_s=20).code == ExitCode.INTERNAL


def test_a_host_that_says_nothing_is_lost(on_slice: Callable, tmp_path: Path) -> None:
    limits = {"XLA_RUN_LOST_AFTER": "2", "XLA_RUN_BEAT_EVERY": "0.5"}
    first, second = on_slice(WAITS, **limits)
    all_on(tmp_path)
    # It has the head of its host in it.
    (conductor,) = process_tree.children(second.process.pid)
    os.kill(conductor, signal.SIGSTOP)
    ended = first.end(limit_s=20)
    assert ended.code == ExitCode.HOST
    assert "(worker 1), ranks 2, 3, was lost: no word from it for 2 s" in ended.err
    os.kill(conductor, signal.SIGCONT)
    ended = second.end(limit_s=20)
    assert ended.code != 0 and "127.0.0.1 (worker 0)" in ended.err


def test_what_is_stopped_on_one_host_ends_on_the_other(on_slice: Callable, tmp_path: Path) -> None:
    first, second = on_slice(WAITS)
    all_on(tmp_path)
    first.process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in first.end(limit_s=20).err
    ended = second.end(limit_s=20)
    assert ended.code == ExitCode.INTERRUPTED
    assert "(worker 0), ranks 0, 1, has ended the job: stopped by SIGINT" in ended.err


def test_a_host_that_never_comes_is_named_on_the_others(on_slice: Callable) -> None:
    limits = {"XLA_RUN_RENDEZVOUS_TIMEOUT": "5", "XLA_RUN_NOTICE_AFTER": "2"}
    hosts = on_slice(WAITS, hosts=3, started=(0, 2), **limits)
    missing = "ranks 2, 3 of 6 (host 127.0.0.2 (worker 1): no answer)"
    ended = [host.end(limit_s=30) for host in hosts]
    assert [one.code for one in ended] == [ExitCode.RENDEZVOUS] * 2, [one.err for one in ended]
    for one in ended:
        assert f"waiting for {missing} to arrive" in one.err
        assert f"rendezvous: {missing} did not arrive in" in one.err


def test_the_first_host_that_never_comes_is_named(on_slice: Callable) -> None:
    limits = {"XLA_RUN_RENDEZVOUS_TIMEOUT": "3", "XLA_RUN_NOTICE_AFTER": "2"}
    (second,) = on_slice(WAITS, started=(1,), **limits)
    ended = second.end(limit_s=20)
    assert ended.code == ExitCode.RENDEZVOUS
    told = "rendezvous: ranks 0, 1 of 4 (host 127.0.0.1 (worker 0): no answer) did not arrive in 3"
    assert told in ended.err


def test_hosts_that_start_different_numbers_of_ranks_are_refused(on_slice: Callable) -> None:
    for host in on_slice(WAITS, ranks=(2, 3)):
        ended = host.end(limit_s=20)
        assert ended.code == ExitCode.PREFLIGHT
        told = "host 127.0.0.2 (worker 1) counts 3 ranks on it, host 0 2; the script must be start"
        assert told in ended.err


def test_a_port_that_is_taken_is_named(on_slice: Callable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (first,) = on_slice(WAITS, started=(0,), MASTER_PORT=str(port))
        ended = first.end(limit_s=30)
    assert ended.code == ExitCode.HOST
    assert f"host 127.0.0.1 (worker 0) cannot listen at 127.0.0.1:{port}, where the o" in ended.err
    assert "set MASTER_ADDR to an address of it, or MASTER_PORT to a port that is free" in ended.err


def test_a_stranger_with_the_right_words_is_turned_away_by_its_address(
    on_slice: Callable,
) -> None:
    port = free_port()
    (first,) = on_slice("return rank", started=(0,), MASTER_PORT=str(port))
    hello = {"version": 1, "hosts": 2, "ranks": 2, "device": "CPU", "say": "here", "host": 1}
    end_s = time.monotonic() + 20
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            stranger = socket.create_connection(("127.0.0.1", port), 5, ("127.0.0.9", 0))
            break
        assert time.monotonic() < end_s
        time.sleep(0.05)
    with stranger, contextlib.suppress(OSError):
        stranger.sendall(encode(hello))
        assert stranger.recv(1) == b""
    (second,) = on_slice("return rank", started=(1,), MASTER_PORT=str(port))
    ended = [first.end(), second.end()]
    assert [(one.code, one.out) for one in ended] == [
        (0, "results [0, 1]\n"),
        (0, "results [2, 3]\n"),
    ]
    told = "warning: a connection from 127.0.0.9 was refused: it is no address of the hosts of a "
    assert told in ended[0].err


def test_hosts_with_another_secret_are_told_so_on_both_sides(on_slice: Callable) -> None:
    limits = {"XLA_RUN_RENDEZVOUS_TIMEOUT": "4", "XLA_RUN_SECRET": "5e" * 32}
    (first,) = on_slice(WAITS, started=(0,), **limits)
    (second,) = on_slice(WAITS, started=(1,), **{**limits, "XLA_RUN_SECRET": "0f" * 32})
    ended = second.end(30)
    assert ended.code == ExitCode.HOST
    assert "XLA_RUN_SECRET is another one there; set the same" in ended.err
    ended = first.end(30)
    assert ended.code == ExitCode.RENDEZVOUS
    assert "was refused: it does not know the secret of this job (XLA_RUN_SECRET)" in ended.err


def test_strangers_at_the_port_do_no_harm(on_slice: Callable, tmp_path: Path) -> None:
    port = free_port()
    (first,) = on_slice("return rank", started=(0,), MASTER_PORT=str(port))
    strangers = []
    for words in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\0\0\0\2\0\0\0\0{}", b"\xff" * 4096):
        end_s = time.monotonic() + 20
        while True:
            try:
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                break
            except OSError:
                assert time.monotonic() < end_s
                time.sleep(0.05)
        strangers[-1].sendall(words)
    (second,) = on_slice("return rank", started=(1,), MASTER_PORT=str(port))
    assert [first.end().out, second.end().out] == ["results [0, 1]\n", "results [2, 3]\n"]
    for stranger in strangers:
        stranger.close()


TRAINS = """import torch, torch_xla, torch_xla.core.xla_model as xm
    torch.manual_seed(3)
    model = torch.nn.Linear(6, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(4, 8, 6)[rank].to("xla")
    for step in range(5 if rank < 2 else {steps_of_the_second}):
        optimizer.zero_grad()
        loss = (model(inputs) - 1).square().mean()
        loss.backward()
        if (step, rank) == {failing}:
            raise ValueError("no batch")
        xm.optimizer_step(optimizer)
        torch_xla.sync()
    return [parameter.tolist() for parameter in model.parameters()]
"""


def trains(failing: tuple[int, int] | None = None, second: int = 5) -> str:
    return TRAINS.format(failing=failing, steps_of_the_second=second)


def results(out: str) -> list[str]:
    (line,) = [line for line in out.splitlines() if line.startswith("results ")]
    return eval(line.removeprefix("results "))  # type: ignore[no-any-return]


@pytest.mark.long
def test_training_on_two_hosts_is_that_on_one_host_with_as_many_ranks(
    on_slice: Callable,
) -> None:
    first, second = on_slice(trains())
    ended = first.end(200), second.end(200)
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    (alone,) = on_slice(trains(), ranks=(4,), started=(0,), hosts=1)
    expected = results(alone.end(200).out)
    assert results(ended[0].out) + results(ended[1].out) == expected
    assert expected[0] == expected[3]


@pytest.mark.long
def test_a_rank_that_fails_in_training_ends_the_other_host_with_its_name(
    on_slice: Callable,
) -> None:
    first, second = on_slice(trains(failing=(2, 1)))
    failed, other = first.end(200), second.end(200)
    assert (failed.code, other.code) == (1, 1)
    assert "ValueError: no batch" in failed.err
    assert "(worker 0), ranks 0, 1, has ended the job: rank 1 (host " in other.err
    assert "raised ValueError after step 2: no batch" in other.err
    # What the ranks have met at is served until those of both hosts have ended.
    assert "SIGABRT" not in failed.err + other.err


@pytest.mark.long
def test_a_host_that_finishes_early_is_named_where_the_others_wait_for_it(
    on_slice: Callable,
) -> None:
    first, second = on_slice(trains(second=3), XLA_RUN_EXIT_BARRIER="5")
    early, waiting = second.end(200), first.end(200)
    assert (early.code, waiting.code) == (1, 1), (early.err, waiting.err)
    told = "host 127.0.0.2 (worker 1), ranks 2, 3, has finished early, while others still needed"
    assert told in waiting.err
    assert "has ended the job" in early.err


PICKLES = """import torch_xla.core.xla_model as xm
    from fractions import Fraction
    return str(xm.mesh_reduce("tag", Fraction(rank, 4), sum))
"""


@pytest.mark.long
def test_pickles_cross_between_hosts_only_with_a_secret(on_slice: Callable) -> None:
    refused = [host.end(200) for host in on_slice(PICKLES)]
    assert [one.code for one in refused] == [1, 1]
    assert any("XLA_RUN_SECRET" in one.err for one in refused), refused[0].err
    ended = [host.end(200) for host in on_slice(PICKLES, XLA_RUN_SECRET="5a" * 32)]
    assert [results(one.out) for one in ended] == [["3/2"] * 2] * 2, ended[0].err

"""What happens to hosts, their links and their servers while a job runs on them, and before.

Times are measured from outside, and afterwards nothing of the job is alive on any host.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pod import Pod

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.system import process_tree

TWO = ("--hosts", "a,b", "-n", "2")
# Nobody is to come back over another connection: that is `test_lost_ssh`.
AT_ONCE = ("--reconnect-within", "0")
WAITS = "say('on%d' % RANK); time.sleep(200)"


def running(on_hosts: Callable, *options: str, body: str = WAITS) -> "object":
    """A job whose four ranks are all at work."""
    job = on_hosts(body, *TWO, *options)
    for rank in range(4):
        job.wait_for(f"on{rank}")
    return job


def test_a_host_that_is_killed_is_named_and_the_others_end(on_hosts: Callable, pod: Pod) -> None:
    job = running(on_hosts)
    since_s = time.monotonic()
    pod.hosts["b"].kill()
    ended = job.end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert "xla-run: host b (ranks 2, 3) was lost: its stream ended" in ended.err
    assert time.monotonic() - since_s < 30


def test_a_cut_link_is_noticed_and_each_side_ends_its_ranks(on_hosts: Callable, pod: Pod) -> None:
    job = running(on_hosts, *AT_ONCE)
    pod.hosts["b"].cut()
    since_s = time.monotonic()
    job.process.wait(15)
    taken_s = time.monotonic() - since_s
    assert job.process.returncode == ExitCode.HOST
    assert "xla-run: host b (ranks 2, 3) was lost: no word from it for 10 s" in job.texts()
    assert 8 < taken_s < 30
    # Nobody can tell the cut-off side: its agent knows by itself.
    assert job.gone(5.0), f"survivors: {job.alive()}"


def test_how_long_a_host_may_be_silent_is_an_option(on_hosts: Callable, pod: Pod) -> None:
    job = running(on_hosts, "--lost-after", "3", "--beat-every", "0.5", *AT_ONCE)
    pod.hosts["b"].cut()
    job.process.wait(8)
    assert "host b (ranks 2, 3) was lost: no word from it for 3 s" in job.texts()
    assert job.gone(5.0), f"survivors: {job.alive()}"


def test_a_short_silence_is_no_loss(on_hosts: Callable, pod: Pod) -> None:
    job = running(on_hosts, body="say('on%d' % RANK); time.sleep(9); print('done', RANK)")
    pod.hosts["b"].cut()
    time.sleep(4)
    pod.hosts["b"].mend()
    ended = job.end()
    assert ended.code == 0, ended.err
    assert ended.out.count("done") == 4


def test_ranks_in_a_collective_end_with_a_host_that_is_lost(on_hosts: Callable, pod: Pod) -> None:
    body = """
        import torch, torch_xla, torch_xla.core.xla_model as xm
        total = torch.zeros(1, device="xla")
        for step in range(10_000):
            total = xm.all_reduce("sum", total + 1)
            torch_xla.sync()
            if step == 3:
                say("on%d" % RANK)
            time.sleep(0.05)
    """
    job = running(on_hosts, *AT_ONCE, body=body)
    pod.hosts["b"].cut()
    job.process.wait(20)
    assert job.process.returncode == ExitCode.HOST, job.texts()
    # A beat may have told of the first steps before the cut.
    lost = r"xla-run: host b \(ranks 2, 3\) was lost( after step \d+ or later)?: "
    assert re.search(lost + "no word from it for 10 s", job.texts()), job.texts()
    assert job.gone(5.0), f"survivors: {job.alive()}"


SUMS = """
import numpy, torch, torch_xla, torch_xla.core.xla_model as xm
for step in range(10_000):
    total = xm.all_reduce("sum", torch.ones(SIZE, device="xla"))
    torch_xla.sync()
    if step == 3:
        say("on%d" % RANK)
"""


@pytest.mark.parametrize("size", [pytest.param(10, marks=pytest.mark.long), 5_000_000])
def test_a_host_that_is_killed_in_an_all_reduce_is_named(
    on_hosts: Callable, pod: Pod, size: int
) -> None:
    job = running(on_hosts, body=SUMS.replace("SIZE", str(size)))
    since_s = time.monotonic()
    pod.hosts["b"].kill()
    ended = job.end(limit_s=20)
    assert time.monotonic() - since_s < 40
    assert ended.code == ExitCode.HOST, ended.err
    assert re.search(r"xla-run: host b \(ranks 2, 3\) was lost", ended.err), ended.err
    assert job.gone(5.0), f"survivors: {job.alive()}"


def test_a_rank_that_is_killed_in_an_all_reduce_over_hosts_is_named(on_hosts: Callable) -> None:
    body = (
        SUMS.replace("SIZE", "2_000_000")
        + """
    if RANK == 3 and step == 20:
        os.kill(os.getpid(), 9)
"""
    )
    since_s = time.monotonic()
    ended = on_hosts(body, *TWO).end(limit_s=60)
    assert time.monotonic() - since_s < 60
    assert ended.code == 137, ended.err
    assert "ranks 0, 1, 2: raised RankLostError after step 21: rank 3 (pid " in ended.err, ended.err
    assert re.search(r"xla-run: rank 3 \(host b, pid \d+\) was killed by SIGKILL", ended.err), (
        ended.err
    )


def test_a_killed_launcher_leaves_nothing_on_any_host(on_hosts: Callable) -> None:
    job = running(on_hosts)
    job.process.kill()
    job.process.wait()
    assert job.gone(5.0), f"survivors: {job.alive()}"


def test_a_killed_connection_loses_its_host(on_hosts: Callable) -> None:
    job = running(on_hosts, *AT_ONCE)
    connections = [pid for pid in process_tree.children(job.process.pid) if is_ssh(pid)]
    assert len(connections) == 2
    os.kill(connections[1], signal.SIGKILL)
    ended = job.end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert "xla-run: host b (ranks 2, 3) was lost: its stream ended" in ended.err


def is_ssh(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "ssh"


def test_a_killed_agent_loses_its_host(on_hosts: Callable) -> None:
    job = running(on_hosts)
    agents = [pid for pid in job.alive() if b"agent_over_pipes" in command(pid)]
    os.kill(max(agents), signal.SIGKILL)
    ended = job.end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert " was lost: its stream ended" in ended.err


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("hosts", ["nosuch", "b,nosuch"])
def test_an_unknown_host_is_named_with_what_ssh_says(on_hosts: Callable, hosts: str) -> None:
    ended = on_hosts(WAITS, "--hosts", hosts, "-n", "1").end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert "xla-run: host nosuch: ssh cannot reach it: ssh: Could not resolve host" in ended.err


def test_a_host_without_a_server_is_named(on_hosts: Callable, pod: Pod) -> None:
    ended = on_hosts(WAITS, "--hosts", "a,b:23", "-n", "1").end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert "host b: ssh cannot reach it: ssh: connect to host " in ended.err
    assert "Connection refused; try `ssh b` by hand" in ended.err


def test_a_host_that_refuses_the_login_is_named(on_hosts: Callable, pod: Pod) -> None:
    ended = on_hosts(WAITS, "--hosts", "a,nobody@b", "-n", "1").end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert "host b: ssh cannot reach it: nobody@" in ended.err
    assert "Permission denied (publickey" in ended.err and "try `ssh nobody@b` by" in ended.err


def test_a_host_without_the_interpreter_is_named(on_hosts: Callable) -> None:
    ended = on_hosts(WAITS, *TWO, "--python", "/no/python").end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert ": /no/python cannot be started there: " in ended.err
    assert "/no/python: No such file or directory; install the same Python" in ended.err


def test_a_host_whose_agent_cannot_start_is_named(on_hosts: Callable) -> None:
    ended = on_hosts(WAITS, *TWO, "--env", "PYTHONPATH=/nowhere", "--python", "/bin/false").end()
    assert ended.code == ExitCode.HOST
    assert "its agent ended with code 1 before it answered: it said nothing; torch" in ended.err


def test_a_host_that_answers_and_hangs_is_named(on_hosts: Callable, tmp_path: Path) -> None:
    hangs = tmp_path / "python"
    hangs.write_text(
        f'#!/bin/sh\n[ "$(hostname)" = b ] && exec sleep 100\nexec {sys.executable} "$@"\n'
    )
    hangs.chmod(0o755)
    options = ("--python", str(hangs), "--rendezvous-timeout", "5", "--notice-after", "2")
    ended = on_hosts(WAITS, *TWO, *options).end(limit_s=15)
    assert ended.code == ExitCode.RENDEZVOUS
    assert "waiting for ranks 0-3 of 4 (host b: no answer) to arrive" in ended.err
    assert "rendezvous: ranks 0-3 of 4 (host b: no answer) did not arrive in 5 s" in ended.err


def test_what_a_login_shell_prints_is_no_harm(on_hosts: Callable, tmp_path: Path) -> None:
    chatty = tmp_path / "python"
    chatty.write_text(f'#!/bin/sh\necho Welcome to $(hostname)\nexec {sys.executable} "$@"\n')
    chatty.chmod(0o755)
    ended = on_hosts("print('ran')", *TWO, "--python", str(chatty)).end()
    assert ended.code == 0, ended.err
    assert ended.out.count("ran") == 4 and "Welcome" not in ended.out + ended.err


def on_addresses(tmp_path: Path, address: str) -> tuple[str, ...]:
    (tmp_path / "hosts").write_text(f"a slots=1 address={address}\nb slots=1\n")
    return "--hostfile", str(tmp_path / "hosts")


def test_a_host_that_cannot_reach_the_first_is_named(
    on_hosts: Callable, tmp_path: Path, pod: Pod
) -> None:
    pod.hosts["a"].also_has("10.250.0.1")
    body = "import torch, torch_xla; torch_xla.device()"
    ended = on_hosts(body, *on_addresses(tmp_path, "10.250.0.1")).end(limit_s=60)
    assert ended.code == ExitCode.HOST
    assert "xla-run: host b cannot reach host a at 10.250.0.1:" in ended.err
    assert "(Network is unreachable); hosts must reach each other on any port" in ended.err


def test_an_address_that_is_none_of_the_first_host_is_named(
    on_hosts: Callable, tmp_path: Path
) -> None:
    ended = on_hosts(WAITS, *on_addresses(tmp_path, "192.0.2.7")).end(limit_s=30)
    assert ended.code == ExitCode.HOST
    assert "xla-run: host a: 192.0.2.7 is no address of it; name one that" in ended.err

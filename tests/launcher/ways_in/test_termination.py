"""SIGTERM to a script that waits for the ranks it has spawned."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from torch_xdist.system import process_tree

# What is claimed is 5 s; a slow machine gets more.
GONE_S = 15.0
SPAWN = """
from torch_xdist.launcher.ways_in.spawn import spawn
def up(rank):
    with open(os.path.join(os.environ["FOLDER"], "up%d" % rank), "w") as file:
        file.write("x")
def work(rank):
    {rank}
    up(rank)
    while True: time.sleep(0.1)
if __name__ == "__main__":
    {script}
"""
SAVES = """
    def save(*_):
        time.sleep(2)
        with open(os.path.join(os.environ["FOLDER"], "saved%d" % rank), "w") as file:
            file.write("x")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
"""
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
JOINED = "spawn(work, nprocs=2)"


def up(start: Callable, rank: str = "", script: str = JOINED):
    job = start(SPAWN.format(rank=rank.strip(), script=script))
    job.wait_for("up0")
    job.wait_for("up1")
    return job


@pytest.mark.parametrize(
    "script",
    [
        JOINED,
        "spawn(work, nprocs=2, join=False).join()",
        "spawn(work, nprocs=2, join=False).join(1e4)",
    ],
    ids=["spawn", "join", "join with a limit"],
)
def test_the_ranks_of_a_script_that_is_told_to_end_save_first(start: Callable, script: str) -> None:
    job = up(start, SAVES, script)
    job.process.terminate()
    ended = job.end(30)
    assert ended.code == -signal.SIGTERM and "Traceback" not in ended.out + ended.err
    assert (job.folder / "saved0").exists() and (job.folder / "saved1").exists()


@pytest.mark.parametrize("script", [JOINED, "spawn(work, nprocs=2, join=False).join()"])
def test_a_signal_that_interrupts_no_wait_is_heard_all_the_same(
    start: Callable, script: str
) -> None:
    # As one that comes between the last look for signals and the wait: another thread gets it.
    tell = """def tell():
        while not {"up0", "up1"} < set(os.listdir(os.environ["FOLDER"])):
            time.sleep(0.05)
        time.sleep(0.5)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Thread(target=tell, daemon=True).start()
    """
    ended = start(SPAWN.format(rank=SAVES.strip(), script=tell + script)).end(30)
    assert ended.code == -signal.SIGTERM
    assert all(ended.folder.joinpath(f"saved{rank}").exists() for rank in (0, 1))


def test_a_signal_to_all_processes_of_a_script_is_one_request(start: Callable) -> None:
    # As Slurm and systemd do it: also the conductor, the agent, the nursery and the ranks.
    job = up(start, SAVES)
    for pid in process_tree.marked(job.mark):
        os.kill(pid, signal.SIGTERM)
    ended = job.end(30)
    assert ended.code == -signal.SIGTERM
    assert (job.folder / "saved0").exists() and (job.folder / "saved1").exists()


def test_ranks_that_save_nothing_end_at_once_with_their_script(start: Callable) -> None:
    job = up(start)
    asked_s = time.monotonic()
    job.process.terminate()
    assert job.end(20).code == -signal.SIGTERM
    assert time.monotonic() - asked_s < GONE_S


def test_a_second_sigterm_ends_ranks_that_do_not_listen(start: Callable) -> None:
    job = up(start, DEAF)
    job.process.terminate()
    time.sleep(0.5)
    assert job.process.poll() is None
    job.process.terminate()
    job.process.wait(GONE_S)
    assert job.gone(GONE_S), job.alive()
    assert job.end().code == -signal.SIGTERM


def test_a_handler_of_the_scripts_own_is_left_alone(start: Callable) -> None:
    script = "signal.signal(signal.SIGTERM, lambda *_: os._exit(9)); spawn(work, nprocs=2)"
    job = up(start, DEAF, script)
    job.process.terminate()
    job.process.wait(GONE_S)
    assert job.gone(GONE_S), job.alive()
    assert job.end().code == 9


def test_afterwards_sigterm_has_its_default_action_again(start: Callable) -> None:
    script = """spawn(up, nprocs=2)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    say("over")
    time.sleep(600)
"""
    job = start(SPAWN.format(rank="", script=script))
    job.wait_for("over")
    job.process.terminate()
    assert job.end(GONE_S).code == -signal.SIGTERM


def test_in_a_thread_spawn_leaves_signals_alone(start: Callable) -> None:
    script = """thread = threading.Thread(target=spawn, args=(up,), kwargs={"nprocs": 2})
    thread.start()
    thread.join()
"""
    assert start(SPAWN.format(rank="", script=script)).end().code == 0

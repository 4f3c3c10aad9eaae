"""`spawn` with real processes: values in, values out, one traceback, nothing left behind."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_xdist.launcher.facts.errors import (
    NestedSpawnError,
    PayloadError,
    RankFailedError,
    RendezvousError,
    UsageError,
)
from torch_xdist.launcher.ways_in.spawn import Handle, spawn


@pytest.fixture(autouse=True)
def light_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ranks that need no device need no torch either."""
    monkeypatch.setenv("XLA_RUN_PREIMPORT", "")
    monkeypatch.setenv("XLA_RUN_STATE_DIR", str(tmp_path / "state"))


def test_results_come_back_in_the_order_of_the_ranks() -> None:
    base = 10
    assert spawn(lambda rank, factor: base + rank * factor, (2,), nprocs=3) == [10, 12, 14]


def test_a_rank_knows_who_it_is() -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_PORT", "XLA_RUN_SECRET")
    found = spawn(lambda rank: [os.environ[name] for name in names], nprocs=2)
    assert [row[:4] for row in found] == [["0", "0", "2", "0"], ["1", "1", "2", "0"]]
    assert found[0][4:] == found[1][4:] and len(bytes.fromhex(found[0][5])) == 32


def test_an_exception_comes_back_as_itself_with_the_ranks_traceback_and_ends_the_others() -> None:
    def work(rank: int) -> None:
        if rank == 1:
            raise ValueError("no such batch")
        time.sleep(60)

    started_s = time.monotonic()
    with pytest.raises(ValueError, match="no such batch") as caught:
        spawn(work, nprocs=2)
    assert time.monotonic() - started_s < 40
    told = str(caught.value.__cause__)
    assert "rank 1 (host" in told and 'raise ValueError("no such batch")' in told


def test_a_killed_rank_is_named_with_its_signal() -> None:
    def work(rank: int) -> None:
        print("about to go")
        if rank == 1:
            os.kill(os.getpid(), 9)
        time.sleep(60)

    with pytest.raises(RankFailedError, match=r"rank 1 .* was killed by SIGKILL") as caught:
        spawn(work, nprocs=2)
    assert caught.value.exit_code == 137 and caught.value.rank == 1
    assert "about to go" in str(caught.value)


def test_what_cannot_be_pickled_is_named_before_anything_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(PayloadError, match=r"fn\.__closure__\['lock'\]"):
        spawn(lambda rank: lock.locked(), nprocs=2)


def test_a_result_that_cannot_be_pickled_is_named_with_its_rank() -> None:
    with pytest.raises(PayloadError) as caught:
        spawn(lambda rank: sys.stdout.buffer if rank == 1 else 0, nprocs=2)
    told = f"{caught.value}\n{caught.value.__cause__}"
    assert "result (_io.BufferedWriter) cannot be pickled" in told
    assert "rank 1 " in told and "rank 0 " not in told


def test_fork_as_start_method_is_said_once_to_do_the_same_as_spawn(run: Callable) -> None:
    ended = run(
        """
        from torch_xdist.launcher.ways_in.spawn import spawn
        if __name__ == "__main__":
            for _ in range(2):
                print(spawn(lambda rank: rank, nprocs=2, start_method="fork"))
        """
    )
    assert ended.code == 0 and ended.out.count("[0, 1]") == 2
    assert ended.err.count("spawn: start_method='fork' does the same as 'spawn' here") == 1


def test_spawn_inside_a_rank_is_one_clear_error() -> None:
    with pytest.raises(NestedSpawnError, match="this is rank 0 of a spawn already"):
        spawn(lambda rank: spawn(lambda inner: inner, nprocs=2), nprocs=1)


def test_an_unknown_start_method_is_refused() -> None:
    with pytest.raises(UsageError, match="start_method='threads' is unknown"):
        spawn(print, start_method="threads")


def test_a_handle_gives_processes_and_then_the_results() -> None:
    handle = spawn(lambda rank: os.getpid(), nprocs=2, join=False)
    assert isinstance(handle, Handle)
    pids = handle.join()
    assert handle.pids() == pids
    assert not any(process.is_alive() for process in handle.processes)


def test_a_script_that_spawns_from_main_shows_one_headline_and_the_ranks_lines() -> None:
    script = """
        from torch_xdist.launcher.ways_in.spawn import spawn
        def work(rank):
            print("hello from", rank)
        if __name__ == "__main__":
            spawn(work, nprocs=2)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "XLA_RUN_NOTICE_AFTER": "off"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["2 ranks on 1 host, CPU (shared memory)"]
    assert sorted(done.stdout.splitlines()) == ["[0] hello from 0", "[1] hello from 1"]


def test_spawn_works_from_a_thread_and_after_it() -> None:
    found: list[object] = []
    handles: list[object] = []

    def work() -> None:
        found.append(spawn(lambda rank: rank, nprocs=2))
        handles.append(spawn(lambda rank: time.sleep(0.5), nprocs=1, join=False))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[0, 1]]
    assert isinstance(handles[0], Handle)
    # The thread that started this job is gone; the job is not.
    assert handles[0].join() == [None]


def test_ranks_draw_different_random_numbers_and_share_nothing_else() -> None:
    def draw(rank: int) -> tuple[float, float]:
        import random

        import numpy

        return random.random(), float(numpy.random.rand())

    first, second = spawn(draw, nprocs=2)
    assert first[0] != second[0] and first[1] != second[1]


@pytest.mark.parametrize("after_s", [0.0, 0.2, 1.0])
def test_a_stop_is_heard_however_early_it_comes(after_s: float) -> None:
    handle = spawn(lambda rank: time.sleep(600), nprocs=1, join=False)
    assert isinstance(handle, Handle)
    assert after_s == 0.0 or handle.join(after_s) is None, "a timeout leaves the job running"
    handle.stop()
    with pytest.raises(RankFailedError, match="stopped by SIGINT"):
        handle.join()


def test_large_arguments_and_results_make_the_journey() -> None:
    block = bytes(16 << 20)
    (result,) = spawn(lambda rank, data: data + b"x", (block,), nprocs=1)
    assert len(result) == len(block) + 1


def test_ranks_that_never_arrive_are_a_rendezvous_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sleeps.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XLA_RUN_PREIMPORT", "sleeps")
    monkeypatch.setenv("XLA_RUN_RENDEZVOUS_TIMEOUT", "1")
    with pytest.raises(RendezvousError, match="ranks 0, 1 of 2 did not arrive in 1 s"):
        spawn(print, nprocs=2)


def test_an_exception_that_cannot_be_pickled_comes_as_text() -> None:
    def work(rank: int) -> None:
        class Odd(Exception):
            def __init__(self, a: int, b: int) -> None:
                super().__init__("odd")
                self.lock = threading.Lock()

        raise Odd(1, 2)

    with pytest.raises(RankFailedError, match=r"raised Odd: odd"):
        spawn(work, nprocs=1)

"""A rank that dies, raises or exits: who is blamed, with which code, how fast, nothing left.

Times are measured from outside: from the moment of the fault to the end of `xla-run`.
"""

import re
import signal
from collections.abc import Callable

import pytest

# What the design promises, in seconds after the fault.
ALL_DOWN_S = 5.0
EXCEPTION_S = 2.0

TWO = ("--nprocs", "2")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_job_with_its_signal(run: Callable, victim: int) -> None:
    ended = run(
        f"""
        meet()
        print("the last words of", RANK)
        if RANK == {victim}:
            fault(); os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
        """,
        *TWO,
    )
    assert ended.code == 137
    assert ended.after_fault_s < ALL_DOWN_S
    assert re.search(rf"rank {victim} \(host \S+, pid \d+\) was killed by SIGKILL", ended.err)
    assert f"  the last words of {victim}" in ended.err
    assert "Traceback" not in ended.err


def test_what_a_peer_says_half_a_second_later_is_shown_where_no_beat_told_of_a_collective(
    run: Callable,
) -> None:
    ended = run(
        """
        import torch_xla
        meet()
        time.sleep(2.0)
        if RANK == 1:
            fault(); os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
        raise ConnectionError("rank 1 has ended")
        """,
        *(*TWO, "--beat-every", "0.5"),
    )
    assert ended.code == 137
    assert ended.after_fault_s < ALL_DOWN_S
    assert re.search(r"then rank 0 .* raised ConnectionError: rank 1 has ended", ended.err)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT])
def test_a_crash_shows_its_signal_and_python_stack(run: Callable, number: signal.Signals) -> None:
    ended = run(
        f"""
        meet()
        def crash():
            os.kill(os.getpid(), {int(number)}); time.sleep(5)
        if RANK == 1:
            fault(); crash()
        threading.Event().wait()
        """,
        *TWO,
    )
    assert ended.code == 128 + number
    assert ended.after_fault_s < ALL_DOWN_S
    assert "rank 1" in ended.err and number.name in ended.err
    assert re.search(r'train.py", line \d+ in crash', ended.log(1))


@pytest.mark.parametrize("victim", [0, 1])
def test_an_exception_shows_one_traceback_and_its_rank(run: Callable, victim: int) -> None:
    ended = run(
        f"""
        meet()
        if RANK == {victim}:
            fault(); raise ValueError("bad batch")
        threading.Event().wait()
        """,
        *TWO,
    )
    assert ended.code == 1
    assert ended.after_fault_s < EXCEPTION_S
    assert f"rank {victim} (host" in ended.err
    assert (ended.out + ended.err).count("Traceback") == 1
    assert ended.log(victim).count("ValueError: bad batch") == 1


def test_the_same_exception_on_all_ranks_is_shown_once(run: Callable) -> None:
    ended = run("import no_such_module", "--nprocs", "4")
    assert ended.code == 1
    assert "the same on ranks 0-3" in ended.err
    assert ended.err.count("Traceback") == 1
    assert "No module named 'no_such_module'" in ended.err


@pytest.mark.parametrize(
    ("way", "code", "words"),
    [
        ("sys.exit(7)", 7, "rank 1 .* exited with code 7"),
        ('sys.exit("no data")', 1, "rank 1 .* exited with code 1: no data"),
        ("os._exit(9)", 9, "rank 1 .* exited with code 9"),
        ("os._exit(0)", 1, "rank 1 .* exited with code 0: it ended without saying"),
    ],
)
def test_an_exit_code_is_passed_on(run: Callable, way: str, code: int, words: str) -> None:
    ended = run(
        f"""
        meet()
        if RANK == 1:
            fault(); {way}
        threading.Event().wait()
        """,
        *TWO,
    )
    assert ended.code == code
    assert ended.after_fault_s < ALL_DOWN_S
    assert re.search(words, ended.err)


@pytest.mark.parametrize(
    "way",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); threading.Event().wait()",
        "ctypes.PyDLL(None).sleep(600)",
        "signal.signal(signal.SIGTERM, lambda *_: None)\n            while True: pass",
    ],
    ids=["ignores SIGTERM", "holds the GIL", "spins"],
)
def test_a_rank_that_cannot_be_asked_is_killed_in_time(run: Callable, way: str) -> None:
    ended = run(
        f"""
        meet()
        if RANK == 1:
            time.sleep(0.2)
            fault(); raise ValueError("bad batch")
        if RANK == 0:
            {way}
        """,
        *TWO,
    )
    assert ended.code == 1
    assert ended.after_fault_s < ALL_DOWN_S
    assert "rank 1 (host" in ended.err


def test_ranks_that_all_finish_end_the_job_with_0(run: Callable) -> None:
    ended = run("print('done')", *TWO)
    assert ended.code == 0
    assert sorted(ended.out.split("\n")) == ["", "[0] done", "[1] done"]
    assert ended.err.splitlines() == ["2 ranks on 1 host, CPU (shared memory)"]


def test_a_rank_that_aborts_after_all_have_finished_is_a_warning(run: Callable) -> None:
    ended = run("import atexit; atexit.register(os.abort) if RANK == 1 else None", *TWO)
    assert ended.code == 0
    assert "warning: rank 1 had finished, then died of SIGABRT in its teardown" in ended.err


def test_a_rank_that_is_slow_to_end_is_a_warning(run: Callable) -> None:
    ended = run(
        "import atexit; atexit.register(time.sleep, 60) if RANK == 1 else None",
        *(*TWO, "--exit-barrier", "1"),
    )
    assert ended.code == 0
    assert "warning: rank 1 had finished, but not ended 1 s later: killed" in ended.err


def test_a_rank_may_work_on_after_the_others_have_finished(run: Callable) -> None:
    ended = run("time.sleep(2 * (RANK == 0)); print('done')", *TWO, "--exit-barrier", "1")
    assert ended.code == 0
    assert ended.out.count("done") == 2


@pytest.mark.parametrize(
    "child",
    [
        'subprocess.Popen(["sleep", "600"])',
        'subprocess.Popen(["sleep", "600"], start_new_session=True)',
        'subprocess.Popen(["sh", "-c", "setsid sleep 600 & exit"]).wait()',
        'subprocess.Popen(["sh", "-c", "setsid sleep 600 & exit"], env={}).wait()',
        "os.fork() or time.sleep(600)",
    ],
    ids=["plain", "own session", "daemonized", "daemonized without environment", "forked"],
)
def test_what_a_rank_started_goes_with_it(start: Callable, child: str) -> None:
    job = start(
        f"""
        {child}
        meet()
        say("ready")
        if RANK == 1:
            time.sleep(0.2)
            fault(); os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """,
        *TWO,
    )
    ended = job.end()
    assert ended.code == 137
    assert ended.after_fault_s < ALL_DOWN_S


def test_a_flood_of_output_does_not_hide_a_death(run: Callable) -> None:
    ended = run(
        """
        meet()
        if RANK == 1:
            time.sleep(0.5)
            fault(); os.kill(os.getpid(), signal.SIGKILL)
        while True:
            os.write(1, b"noise\\n" * 2000)
        """,
        *TWO,
    )
    assert ended.code == 137
    assert ended.after_fault_s < ALL_DOWN_S
    assert "rank 1 (host" in ended.err

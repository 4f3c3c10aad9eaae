"""`python script.py` whose job failed ends with the job's code; an exception of a rank is 1."""

from collections.abc import Callable

import pytest

SCRIPT = """
from torch_xdist.launcher.facts.errors import LauncherError
from torch_xdist.launcher.ways_in.spawn import spawn

def work(rank):
    if rank == 1:
        {fault}
    time.sleep(60)

if __name__ == "__main__":
    {call}
"""


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "RankFailedError: rank 1 "),
        ("sys.exit(7)", 7, "RankFailedError: rank 1 "),
        ('raise ValueError("bad batch")', 1, "ValueError: bad batch"),
    ],
    ids=["killed", "exited", "raised"],
)
def test_a_script_ends_with_the_code_of_its_job(
    run: Callable, fault: str, code: int, words: str
) -> None:
    ended = run(SCRIPT.format(fault=fault, call="spawn(work, nprocs=2)"))
    assert ended.code == code
    assert words in ended.err and "Error in sys.excepthook" not in ended.err


def test_an_error_before_anything_starts_has_its_code_too(run: Callable) -> None:
    ended = run(SCRIPT.format(fault="pass", call='spawn(work, nprocs=2, start_method="magic")'))
    assert ended.code == 2 and "start_method='magic' is unknown" in ended.err


def test_a_hook_that_calls_the_one_before_it_is_no_endless_loop(run: Callable) -> None:
    call = """
    for _ in range(3):
        try:
            spawn(work, nprocs=2)
        except LauncherError:
            sys.excepthook = lambda *seen, former=sys.excepthook: former(*seen)
    spawn(work, nprocs=2)
    """
    ended = run(SCRIPT.format(fault="sys.exit(7)", call=call))
    assert ended.code == 7 and ended.err.count("RankFailedError: ") == 1


def test_who_catches_the_error_goes_on_and_the_scripts_own_hook_is_called_first(
    run: Callable,
) -> None:
    call = """
    sys.excepthook = lambda kind, error, trace: print("my hook:", kind.__name__)
    try:
        spawn(work, nprocs=2)
    except LauncherError as error:
        print("caught", error.exit_code)
    spawn(work, nprocs=2)
    """
    ended = run(SCRIPT.format(fault="sys.exit(7)", call=call))
    assert ended.code == 7
    assert ended.out.splitlines() == ["caught 7", "my hook: RankFailedError"]

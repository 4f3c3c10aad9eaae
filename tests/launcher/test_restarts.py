"""Restarts: what is decided, and jobs that train, crash, and go on from their checkpoint."""

import re
import signal
from collections.abc import Callable

import pytest

from torch_xdist.launcher.facts.records import Failure
from torch_xdist.launcher.head.restarts import Again, Attempted, Enough, decide

CRASH = Failure(1, "exception", type="ValueError")


def _crashes(*steps: int) -> list[Attempted]:
    return [Attempted(1, CRASH, step) for step in steps]


def test_without_a_budget_the_first_failure_is_the_last() -> None:
    assert decide(_crashes(5), 0) == Enough(1)


def test_the_pause_doubles_up_to_a_minute() -> None:
    steps = range(10, 100, 10)
    pauses = [decide(_crashes(*steps[:count]), 20) for count in range(1, 9)]
    assert pauses == [Again(s) for s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0)]


def test_three_attempts_without_progress_end_with_77() -> None:
    assert decide(_crashes(0, 0), 9) == Again(2.0)
    why = "3 attempts ended without progress beyond step 0"
    assert decide(_crashes(0, 0, 0), 9) == Enough(77, why)
    assert isinstance(decide(_crashes(50, 50, 60), 9), Again)


def test_a_used_up_budget_ends_with_77() -> None:
    assert decide(_crashes(1, 2, 3), 2) == Enough(77, "the budget of 2 restarts is used up")


def test_steps_count_on_from_the_checkpoint_that_an_attempt_resumed_at() -> None:
    def resumed(at: int, step: int) -> Attempted:
        return Attempted(1, CRASH, step, resumed=at)

    # 10 000 steps, then twice 6 000 more from the last checkpoint.
    assert decide([resumed(0, 10_000), resumed(8_000, 14_000), resumed(12_000, 18_000)], 9) == (
        Again(4.0)
    )
    stuck = [resumed(0, 10_000), resumed(9_000, 10_000), resumed(9_000, 10_000)]
    assert decide(stuck, 9) == Enough(77, "3 attempts ended without progress beyond step 10000")


@pytest.mark.parametrize(
    "steps_and_resumed",
    [
        # Saved by epoch: fewer steps each time, and each goes on from a later one.
        ((20_000, 0), (16_000, 10_000), (19_000, 13_000)),
        # The device counts two steps for each of the script's.
        ((10_000, 0), (5_010, 10), (5_015, 15)),
    ],
)
def test_an_attempt_that_goes_on_from_a_later_checkpoint_shows_that_the_one_before_moved(
    steps_and_resumed: tuple[tuple[int, int], ...],
) -> None:
    attempts = [Attempted(1, CRASH, step, resumed=at) for step, at in steps_and_resumed]
    assert decide(attempts, 9) == Again(4.0)
    stuck = [*attempts, attempts[-1]]
    assert decide(stuck, 9) == Enough(
        77, f"3 attempts ended without progress beyond step {attempts[-1].step}"
    )


def test_attempts_that_resume_nobody_knows_where_are_compared_with_none_but_their_likes() -> None:
    assert isinstance(decide(_crashes(10_000, 6_000, 6_100), 9), Again)
    assert isinstance(decide(_crashes(50, 50, 50), 9), Enough), "at the same step each time"


def test_what_another_attempt_would_repeat_is_not_repeated() -> None:
    for root, code in (
        (Failure(0, "exception", type="ModuleNotFoundError"), 1),
        (Failure(0, "pickle"), 71),
        (Failure(0, "exception", type="UsageError"), 2),
    ):
        assert decide([Attempted(code, root, 0)], 5) == Enough(code)


LOST, TOLD = Failure(1, "host_lost"), Failure(1, "signal", signal=signal.SIGTERM)


@pytest.mark.parametrize(("code", "root"), [(73, LOST), (143, TOLD), (75, Failure(0, "exit"))])
def test_preemptions_have_a_budget_of_their_own(code: int, root: Failure) -> None:
    taken, crashed = Attempted(code, root, 5), Attempted(1, CRASH, 9)
    assert decide([taken], 0, 3) == Again(1.0)
    assert decide([crashed, taken], 1, 3) == Again(1.0)
    assert decide([taken, crashed], 1, 3) == Again(1.0)
    assert decide([taken], 5, 0) == Enough(code)
    told = "the budget of 1 restarts after preemptions and lost hosts is used up"
    assert decide([taken, crashed, taken], 5, 1) == Enough(77, told)
    assert decide([taken], 0) == Enough(code), "without that budget it is a failure"


def test_a_signal_that_is_not_sigterm_is_no_preemption() -> None:
    killed = Attempted(137, Failure(1, "signal", signal=signal.SIGKILL), 5)
    assert decide([killed], 0, 3) == Enough(137)


def test_preemptions_without_progress_are_no_sign_of_a_job_that_is_stuck() -> None:
    taken, crashed = Attempted(73, LOST, 0), Attempted(1, CRASH, 0)
    assert isinstance(decide([taken] * 5, 0, 9), Again)
    assert isinstance(decide([crashed, crashed, taken], 9, 9), Again)
    assert decide([crashed, crashed, taken, crashed], 9, 9).exit_code == 77
    assert decide([taken] * 3, 9).exit_code == 77, "without a budget of their own they are"


def test_after_a_lost_host_the_pause_is_long_enough_for_the_old_ranks_to_end() -> None:
    assert decide([Attempted(73, LOST, 1)], 5, fence_s=6.1) == Again(7.0)
    assert decide(_crashes(1), 5, fence_s=0.5) == Again(1.0)


def test_a_success_or_a_stop_is_the_end() -> None:
    assert decide([Attempted(0, None, 9)], 5) == Enough(0)
    assert decide([Attempted(143, None, 9)], 5) == Enough(143)


TRAIN = """
import torch
import torch_xla.core.xla_model as xm
from torch_xdist.checkpoint import CheckpointManager

device = xm.xla_device()
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job = {{"model": model, "optimizer": optimizer}}
attempt = int(os.environ["XLA_RUN_ATTEMPT"])
with CheckpointManager(FOLDER + "/checkpoints", replicated=("model", "optimizer")) as manager:
    resumed = manager.restore(**job)
    first = resumed.step if resumed else 0
    print("attempt", attempt, "from step", first)
    for step in range(first + 1, 81):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=device)).square().mean().backward()
        xm.optimizer_step(optimizer)
        xm.mark_step()
        if step % 10 == 0:
            manager.save(step, **job)
            manager.wait()
            meet("saved-%d-%d" % (attempt, step))
        if RANK == 1 and {crashes}:
            raise RuntimeError("cosmic ray")
print("done")
"""
TRAINS = ("--nprocs", "2", "--max-restarts", "5")
WARM = {"XLA_RUN_PREIMPORT": "torch,jax,torch_xla.core.xla_model,torch.distributed.tensor"}


@pytest.mark.long
def test_a_job_that_resumes_and_gets_further_each_time_is_not_given_up(run: Callable) -> None:
    # After the first attempt each makes 15 steps: fewer than that one, and yet it goes on.
    crashes = "(attempt, step) in [(0, 55), (1, 65), (2, 75)]"
    ended = run(TRAIN.format(crashes=crashes), *TRAINS, env=WARM)
    assert ended.code == 0, ended.err
    for attempt, step in enumerate([0, 50, 60, 70]):
        assert f"[1] attempt {attempt} from step {step}\n" in ended.out
    assert ended.out.count("done") == 2
    assert re.search(r"rank 1 .* raised RuntimeError after step 55: cosmic ray", ended.err)
    assert re.search(r"rank 1 .* raised RuntimeError after step 75: cosmic ray", ended.err)
    assert "restart 3 of 5 in 4 s" in ended.err


@pytest.mark.long
def test_a_job_that_resumes_and_crashes_at_the_same_step_ends_with_77_after_three(
    run: Callable,
) -> None:
    ended = run(TRAIN.format(crashes="step == 25"), *TRAINS, env=WARM)
    assert ended.code == 77, ended.err
    assert "[1] attempt 2 from step 20\n" in ended.out
    assert "3 attempts ended without progress beyond step 25" in ended.err
    assert len(list(ended.folder.glob("logs/*/attempt-*"))) == 3


def test_a_job_that_always_crashes_ends_with_77_after_three(run: Callable) -> None:
    ended = run("raise ValueError('always')", "--nprocs", "1", "--max-restarts", "9")
    assert ended.code == 77
    assert "3 attempts ended without progress beyond step 0" in ended.err
    assert len(list(ended.folder.glob("logs/*/attempt-*"))) == 3


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGTERM)", "sys.exit(75)"])
def test_a_rank_that_is_preempted_uses_no_restart_of_failures(run: Callable, ending: str) -> None:
    body = f"""
        attempt = int(os.environ["XLA_RUN_ATTEMPT"])
        print("attempt", attempt, "of", os.environ["TORCHELASTIC_MAX_RESTARTS"])
        if attempt < 2 and RANK == 1:
            {ending}
        if attempt == 2 and RANK == 0:
            raise RuntimeError("cosmic ray")
    """
    ended = run(body, *("--nprocs", "2", "--max-restarts", "1", "--max-preemptions", "3"))
    assert ended.code == 0, ended.err
    assert "restart 1 of 3 after preemptions and lost hosts in 1 s" in ended.err
    assert "restart 2 of 3 after preemptions and lost hosts in 2 s" in ended.err
    assert "restart 1 of 1 in 1 s" in ended.err
    assert "[1] attempt 3 of 4\n" in ended.out


def test_a_rank_that_is_preempted_too_often_ends_the_job_with_77(run: Callable) -> None:
    ended = run("sys.exit(75)", "--nprocs", "2", "--max-restarts", "9", "--max-preemptions", "1")
    assert ended.code == 77
    assert "the budget of 1 restarts after preemptions and lost hosts is used up" in ended.err

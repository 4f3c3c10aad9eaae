"""The report of a failed job, and the stacks in it."""

from dataclasses import replace

from torch_xdist.launcher.facts.records import Failure
from torch_xdist.launcher.head import report


def test_a_report_has_the_cause_whole_and_the_echoes_folded() -> None:
    cause = Failure(2, "exception", type="ValueError", message="bad", traceback="Traceback: x\n")
    echo = Failure(
        0, "exception", type="E", message="lost", secondary=True, reason="it lost a peer"
    )
    text = report.failure_text([cause, echo, replace(echo, rank=1)], "/l")
    assert text.splitlines()[1] == "Traceback: x"
    assert text.splitlines()[2].startswith("then ranks 0, 1: ")
    assert text.endswith("logs: /l")


def test_a_stack_is_that_of_the_main_thread_without_our_frames() -> None:
    text = (
        'Thread 0x1 (most recent call first):\n  File "/a/b.py", line 1 in x\n\n'
        'Current thread 0x2 (most recent call first):\n  File "train.py", line 3 in main\n'
        '  File "/site/launcher/on_host/worker.py", line 9 in run\n'
        '  File "<frozen runpy>", line 8 in y\n'
    )
    assert report.main_stack(text).splitlines()[1:] == ['  File "train.py", line 3 in main']


def test_a_lost_host_is_named_with_its_ranks() -> None:
    lost = Failure(2, "host_lost", host="b", message="no word from it for 10 s", step=40)
    text = report.failure_text([lost, replace(lost, rank=3)], "")
    assert text == ("host b (ranks 2, 3) was lost after step 40 or later: no word from it for 10 s")


def test_a_host_that_was_lost_later_is_folded() -> None:
    cause = Failure(0, "exit", exit_code=7)
    lost = Failure(2, "host_lost", host="b", message="its stream ended", secondary=True)
    told = report.failure_text([cause, lost, replace(lost, rank=3)], "").splitlines()
    assert told[-1] == "then host b (ranks 2, 3) was lost: its stream ended"


def test_a_rank_whose_agent_has_died_was_ended_and_not_unable_to_start() -> None:
    died = Failure(0, "launch", host="a", message="the agent of host a has died")
    assert report.describe(died) == (
        "rank 0 (host a) could not be started: the agent of host a has died"
    )
    told = report.describe(replace(died, step=7))
    assert told == "rank 0 (host a) was ended: the agent of host a has died"

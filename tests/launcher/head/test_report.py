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

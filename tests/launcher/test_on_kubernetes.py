"""`xla-run --k8s` from outside: a stand-in for kubectl, whose pods are real processes.

The pods run their command without ranks; `test_pods_of_kubernetes.py` has those.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubectl_stand_in import REFUSED, calls
from kubernetes_job import LIMIT_S, Job, jobs


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with jobs(tmp_path) as begin:
        yield begin


def verbs(job: Job) -> list[str]:
    return [words[0] for words, _ in calls(job.folder)]


def test_a_job_shows_the_lines_of_pod_0_and_ends_with_0(start) -> None:
    said = "for i in 1 2 3; do echo $JOB_COMPLETION_INDEX line $i '$(HOME)'; sleep 0.1; done"
    code, out, err = start("--nodes", "2", "--", "sh", "-c", said).end()
    assert (code, out) == (0, "".join(f"0 line {i} $(HOME)\n" for i in (1, 2, 3))), err
    assert err == "xla-run: job train on Kubernetes: 2 pods of reg/t:1\n"


def test_a_job_ends_with_the_code_of_its_command(start) -> None:
    code, out, err = start("--", "sh", "-c", "echo bad; exit 5").end()
    assert (code, out) == (5, "bad\n")
    assert err.endswith(
        "job train failed: pod train-workers-0-0-00000 (node here) ended with code 5\n"
    )


def test_variables_and_secrets_come_into_the_pods(start) -> None:
    said = 'echo "$LEVEL $API_KEY ${#XLA_RUN_SECRET}"'
    env = ["--env", "LEVEL=$(HOME) 'x'", "--env", "API_KEY=$(HOME)"]
    job = start(*env, "--", "sh", "-c", said)
    assert job.end()[1] == "$(HOME) 'x' $(HOME) 64\n"
    assert not [word for words, _ in calls(job.folder) for word in words if "API_KEY" in word]


def test_ctrl_c_ends_the_job_and_shows_what_its_pods_still_say(start) -> None:
    job = start(
        "--", "sh", "-c", "trap 'echo saved; exit 143' TERM; echo up; while :; do sleep 0.1; done"
    )
    job.wait_for("pods/*/log")
    job.process.send_signal(signal.SIGINT)
    code, out, err = job.end()
    assert (code, out) == (130, "up\nsaved\n")
    assert "asked Kubernetes to end job train: its pods have 32 s to save" in err
    assert err.endswith("xla-run: job train was stopped\n") and "delete" in verbs(job)


def test_a_job_that_is_not_followed_goes_on_and_can_be_followed_later(start) -> None:
    job = start("--detach", "--", "sh", "-c", "echo up; sleep 2; echo done; exit 3")
    out, err = job.process.communicate(timeout=LIMIT_S)
    assert job.process.returncode == 0 and not out
    assert err.endswith("xla-run: follow it: xla-run --k8s train\n")
    code, out, _ = start(new=False).end()
    assert (code, out) == (3, "up\ndone\n")


def test_following_is_left_by_ctrl_c_and_the_job_goes_on(start) -> None:
    job = start("--detach", "--", "sh", "-c", "echo up; sleep 3; echo done")
    job.process.communicate(timeout=LIMIT_S)
    follower = start(new=False)
    assert follower.process.stdout is not None and follower.process.stdout.readline() == "up\n"
    follower.process.send_signal(signal.SIGINT)
    _, err = follower.process.communicate(timeout=LIMIT_S)
    assert follower.process.returncode == 130
    assert err.endswith("left job train, which goes on; end it: kubectl delete jobset/train\n")
    assert start(new=False).end()[:2] == (0, "up\ndone\n")


def test_a_name_is_taken_once(start) -> None:
    job = start("--detach", "--", "true")
    assert job.process.wait(LIMIT_S) == 0
    more = ("--image", "reg/t:1", "-n", "1", "true")
    code, _, err = start(*more, new=False).end()
    assert code == 74 and "there is a job of this name, which runs or has ended in the last" in err


def test_pods_that_were_taken_away_are_started_again(start, tmp_path: Path) -> None:
    flag = tmp_path / "seen"
    said = f"if [ -e {flag} ]; then echo again; else touch {flag}; echo first; exit 143; fi"
    code, out, err = start("--", "sh", "-c", said).end()
    assert (code, out) == (0, "first\nagain\n")
    assert "job train is started again (restart 1): pod train-workers-0-0-00000 (node" in err


def test_restarts_end_with_77(start) -> None:
    code, out, err = start("--max-restarts", "1", "--", "sh", "-c", "echo x; exit 9").end()
    assert (code, out) == (77, "x\nx\n"), err
    assert "ended with code 9; its pods had been started again once, which is the limit" in err


def test_usage_errors_in_the_pods_are_not_repeated(start) -> None:
    code, out, _ = start("--max-restarts", "3", "--", "sh", "-c", "echo x; exit 2").end()
    assert (code, out) == (2, "x\n")


def test_a_cluster_that_misbehaves_costs_no_line(start) -> None:
    faults = {"get": ["slow", REFUSED, "partial", REFUSED], "logs": [REFUSED, "slow"]}
    said = "for i in 1 2 3 4; do echo line $i; sleep 1; done; exit 4"
    code, out, err = start("--", "sh", "-c", said, faults=faults).end()
    assert (code, out) == (4, "".join(f"line {i}\n" for i in (1, 2, 3, 4))), err
    assert "the log of pod train-workers-0-0-00000 is asked for again" in err


def test_a_cluster_that_is_not_there_is_told_before_anything_is_made(start) -> None:
    code, out, err = start("--", "true", faults={"create": [REFUSED]}).end()
    assert (code, out) == (73, "")
    assert err.startswith(
        "xla-run: --k8s: kubectl reaches no cluster: The connection to the server"
    )

"""The exit code and the sentence of a job that is over."""

import pytest

from torch_xdist.launcher.k8s.ending import ending
from torch_xdist.launcher.k8s.sight import Pod, Sight

FAILED = Sight(uid="u", state="Failed", reason="FailJobSetFailurePolicyAction", why="m")


def pod(index: int, code: int, attempt: int = 0, **more: str) -> Pod:
    about = {"name": f"p{index}", "uid": f"u{index}{attempt}", "node": "n1", **more}
    return Pod(index=index, attempt=attempt, code=code, **about)  # type: ignore[arg-type]


def ended(*pods: Pod, sight: Sight = FAILED) -> tuple[int, str]:
    found = ending("train", sight, pods)
    return found.exit_code, found.text


def test_a_job_that_has_completed_is_0_and_nothing_is_said() -> None:
    assert ended(pod(0, 0), sight=Sight(state="Completed")) == (0, "")


@pytest.mark.parametrize(
    ("pods", "code", "told"),
    [
        ([pod(0, 5), pod(1, 5)], 5, "job train failed: pod p0 (node n1) ended with code 5"),
        # Pod 0 says the job's own code; others may end as they are taken away.
        ([pod(0, 1), pod(1, 143)], 1, "pod p0 (node n1) ended with code 1"),
        # It only lost the other one.
        ([pod(0, 73), pod(1, 139)], 139, "pod p1 (node n1) ended with code 139"),
        ([pod(0, 73)], 73, "pod p0 (node n1) ended with code 73"),
        ([pod(0, 143, taken="preempted")], 143, "ended with code 143 (preempted)"),
        (
            [pod(0, 73), pod(1, 137, waits="OOMKilled")],
            137,
            "pod p1 (node n1) ran out of memory (OOMKilled); give the pods more by --memory",
        ),
        (
            [pod(0, 128, waits="StartError", why='exec: "xla-run": executable file not found')],
            71,
            'could not start its command: exec: "xla-run": executable file not found; torch-xdist ',
        ),
    ],
)
def test_the_cause_gives_the_code(pods: list[Pod], code: int, told: str) -> None:
    found, text = ended(*pods)
    assert found == code and told in text


def test_a_pod_that_is_gone_has_its_code_from_the_job() -> None:
    said = "Container xla-run for pod ml/p1 failed with exit code 7 matching FailJob rule at index"
    sight = Sight(state="Failed", job_why=said)
    assert ended(sight=sight) == (7, "job train failed: pod p1 ended with code 7")
    assert ended(pod(0, 73), sight=sight)[0] == 7
    # What pod 0 has said itself is what its log says.
    assert ended(pod(0, 5), sight=sight)[0] == 5


def test_a_job_about_whose_pods_nothing_is_known_is_1() -> None:
    assert ended() == (1, "job train failed: m")


def test_restarts_that_are_used_up_are_77() -> None:
    sight = Sight(state="Failed", reason="ReachedMaxRestarts", restarts=10)
    code, text = ended(pod(0, 143, attempt=10), pod(0, 1, attempt=9), sight=sight)
    assert code == 77
    assert text.endswith("code 143; its pods had been started again 10 times, which is the limit")


def test_a_job_that_may_not_be_started_again_has_its_own_code() -> None:
    assert ended(pod(0, 1), sight=Sight(state="Failed", reason="ReachedMaxRestarts"))[0] == 1

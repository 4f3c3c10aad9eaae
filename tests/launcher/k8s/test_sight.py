"""What is read from the JSON of a JobSet, its Job and its pods."""

from typing import Any

from torch_xdist.launcher.k8s import sight as sights

# As a cluster answers, without what nobody reads.
JOB_SET: dict[str, Any] = {
    "kind": "JobSet",
    "metadata": {"name": "train", "uid": "u-1"},
    "spec": {"replicatedJobs": [{"template": {"spec": {"parallelism": 2}}}]},
}


def pod(index: int, attempt: int = 0, **more: Any) -> dict[str, Any]:
    labels = {
        "batch.kubernetes.io/job-completion-index": str(index),
        "jobset.sigs.k8s.io/restart-attempt": str(attempt),
    }
    name = f"train-workers-0-{index}-x{attempt}"
    about = {"name": name, "uid": f"u-{name}", "labels": labels}
    return {"kind": "Pod", "metadata": about, "spec": {"nodeName": "n1"}, "status": more}


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"state": state}]}


def condition(kind: str, value: str = "True", **more: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": value, **more}]}


def test_an_empty_answer_is_no_job() -> None:
    found = sights.read([])
    assert not found.uid and not found.pods and not found.heads() and not found.all_started()


def test_a_running_job_has_its_pods_in_order() -> None:
    running = container(running={"startedAt": "2031-05-17T08:30:00Z"})
    found = sights.read([pod(1, **running), pod(0, **running), JOB_SET])
    assert [each.index for each in found.newest()] == [0, 1] and found.all_started()
    (head,) = found.heads()
    assert head.has_started and not head.has_ended and head.node == "n1"
    assert found.uid == "u-1" and not found.state


def test_pods_of_the_newest_attempt_count() -> None:
    running, ended = container(running={}), container(terminated={"exitCode": 1})
    found = sights.read([JOB_SET, pod(0, 0, **ended), pod(1, 0, **ended), pod(0, 1, **running)])
    assert [each.name for each in found.newest()] == ["train-workers-0-0-x1"]
    assert [each.attempt for each in found.heads()] == [0, 1]
    assert not found.all_started()


def test_why_no_node_takes_a_pod_is_the_schedulers_own_sentence() -> None:
    told = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    status = condition("PodScheduled", "False", reason="Unschedulable", message=told)
    found = sights.read([JOB_SET, pod(0, **status)]).pods[0]
    assert found.unplaced == told and not found.has_started


def test_an_image_that_cannot_be_pulled_is_known() -> None:
    told = {"reason": "ErrImagePull", "message": "not found"}
    found = sights.read([JOB_SET, pod(0, **container(waiting=told))]).pods[0]
    assert found.cannot_start and (found.waits, found.why) == ("ErrImagePull", "not found")
    later = sights.read([JOB_SET, pod(0, **container(waiting={"reason": "ContainerCreating"}))])
    assert not later.pods[0].cannot_start


def test_a_pod_without_memory_and_one_that_was_evicted_are_known() -> None:
    killed = container(terminated={"exitCode": 137, "reason": "OOMKilled"})
    evicted = {
        **container(terminated={"exitCode": 143}),
        **condition("DisruptionTarget", reason="PreemptionByScheduler", message="preempted"),
    }
    first, second = sights.read([JOB_SET, pod(0, **killed), pod(1, **evicted)]).pods
    assert first.out_of_memory and first.code == 137 and not first.taken
    assert second.taken == "preempted" and not second.out_of_memory


def test_a_pod_whose_node_is_gone_has_ended() -> None:
    found = sights.read([JOB_SET, pod(0, phase="Failed", reason="NodeLost")]).pods[0]
    assert (found.code, found.waits) == (137, "NodeLost")


def test_the_end_of_a_job_set_and_what_its_job_says_are_read() -> None:
    said = "Container xla-run for pod ml/train-workers-0-1-x failed with exit code 5 matching"
    job = {"kind": "Job", "metadata": {}, "status": condition("FailureTarget", message=said)}
    status = {**condition("Failed", reason="FailedJobs", message="m"), "restarts": 2}
    found = sights.read([{**JOB_SET, "status": status}, job])
    assert (found.state, found.reason, found.why) == ("Failed", "FailedJobs", "m")
    assert found.restarts == 2 and found.job_why == said
    done = sights.read([{**JOB_SET, "status": condition("Completed")}])
    assert done.state == "Completed"


def test_a_job_that_a_queue_holds_back_is_suspended() -> None:
    held = {**JOB_SET, "spec": {**JOB_SET["spec"], "suspend": True}}
    assert sights.read([held]).suspended and not sights.read([JOB_SET]).suspended

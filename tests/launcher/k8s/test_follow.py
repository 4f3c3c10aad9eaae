"""A job as it is followed: what is told, when it is given up, and what it ends with."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from torch_xdist.launcher.facts.errors import (
    AuthError,
    HostError,
    LauncherError,
    PreflightError,
    UsageError,
)
from torch_xdist.launcher.head.ending import Ending
from torch_xdist.launcher.k8s.follow import Follow, Limits, Stops
from torch_xdist.launcher.k8s.kubectl import NotThereError

LIMITS = Limits(notice_s=0.0, wait_s=30.0, grace_s=30.0, poll_s=0.01, drain_s=1.0)
QUICK = replace(LIMITS, notice_s=0.05)
SIGHUP, SIGINT, SIGTERM = 1, 2, 15
Answer = list[dict[str, Any]] | LauncherError | Callable[[], None]


class Cluster:
    """It gives these answers to `get`, the last one for good; every pod's log is one line."""

    def __init__(self, answers: Sequence[Answer], events: Sequence[str] = ()) -> None:
        self._answers, self._events = list(answers), events
        self.deleted = 0
        self.refuses_delete: LauncherError | None = None

    def run(self, *words: str, stdin: str = "", limit_s: float = 0.0) -> str:
        if words[0] == "delete":
            if self.refuses_delete is not None:
                raise self.refuses_delete
            self.deleted += 1
            return ""
        if words[1] == "events":
            return json.dumps({"items": [{"message": text} for text in self._events]})
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(answer):
            answer()
            return self.run(*words)
        if isinstance(answer, LauncherError):
            raise answer
        return json.dumps({"items": answer})

    def stream(self, *words: str) -> "Log":
        return Log(words[1])


class Log:
    """One that has come to its end."""

    def __init__(self, pod: str) -> None:
        self._pod = pod

    def lines(self, take: Callable[[bytes], None]) -> tuple[int, str]:
        take(f"2031-05-17T08:30:00Z hello of {self._pod}\n".encode())
        return 0, ""

    def kill(self) -> None:
        pass


def job_set(state: str = "", nodes: int = 1, **more: Any) -> dict[str, Any]:
    spec = {"replicatedJobs": [{"template": {"spec": {"parallelism": nodes}}}], **more}
    condition = {"type": state, "status": "True", "reason": "R", "message": "m"}
    status = {"conditions": [condition] if state else [], "restarts": more.pop("restarts", 0)}
    return {"kind": "JobSet", "metadata": {"uid": "u"}, "spec": spec, "status": status}


def pod(index: int = 0, attempt: int = 0, **state: Any) -> dict[str, Any]:
    labels = {
        "batch.kubernetes.io/job-completion-index": str(index),
        "jobset.sigs.k8s.io/restart-attempt": str(attempt),
    }
    name = f"p{index}-{attempt}"
    status: dict[str, Any] = {"containerStatuses": [{"state": state or {"running": {}}}]}
    if "unplaced" in state:
        told = {"type": "PodScheduled", "status": "False", "message": state["unplaced"]}
        status = {"conditions": [told]}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "uid": name, "labels": labels},
        "status": status,
    }


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


DONE = [job_set("Completed"), pod(**ended(0))]


class Followed:
    """A job, followed to its end: that, what was shown and what was said."""

    def __init__(
        self,
        cluster: Cluster,
        limits: Limits = LIMITS,
        stops: Sequence[int] = (),
        is_ours: bool = True,
    ) -> None:
        self.shown: list[bytes] = []
        self.said: list[str] = []
        self.stops = Stops()
        for number in stops:
            self.stops.put(number)
        parts = (self.shown.append, self.said.append, self.stops)
        self._follow = Follow(cluster, "train", limits, *parts, is_ours=is_ours)  # type: ignore[arg-type]

    def run(self) -> Ending:
        return self._follow.run()


def test_the_lines_of_pod_0_are_shown_and_its_end_is_the_jobs() -> None:
    job = Followed(Cluster([[job_set(), pod()], DONE]))
    assert job.run().exit_code == 0
    assert job.shown == [b"hello of p0-0\n"] and job.said == []


def test_a_job_that_was_over_at_the_first_look_is_shown_too() -> None:
    job = Followed(Cluster([[job_set("Failed"), pod(**ended(5))]]))
    found = job.run()
    assert (found.exit_code, found.text) == (5, "job train failed: pod p0-0 ended with code 5")
    assert job.shown == [b"hello of p0-0\n"]


def test_what_pods_wait_for_is_told_when_it_changes() -> None:
    told = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    waiting = [job_set(nodes=2), pod(0, unplaced=told), pod(1, unplaced=told)]
    pulling = [job_set(nodes=2), pod(0), pod(1, **waits("ContainerCreating"))]
    patient = replace(LIMITS, notice_s=0.0)
    job = Followed(Cluster([waiting, waiting, pulling, DONE]), patient)
    assert job.run().exit_code == 0
    assert job.said == [
        f"pod p0-0 waits for a node: {told.rstrip('.')} (and 1 more)",
        "pod p1-0 waits: ContainerCreating",
    ]


def test_nothing_is_told_of_a_short_wait() -> None:
    job = Followed(Cluster([[job_set(), pod(**waits("ContainerCreating"))], DONE]), Limits())
    assert job.run().exit_code == 0 and job.said == []


def test_a_job_without_pods_is_told_with_the_reason_of_its_events() -> None:
    cluster = Cluster([[job_set()], DONE], events=["exceeded quota: gpus"])
    job = Followed(cluster)
    job.run()
    assert job.said == ["no pods have been made yet: exceeded quota: gpus"]


def test_an_image_that_cannot_be_pulled_ends_the_job() -> None:
    wrong = [job_set(), pod(**waits("ErrImagePull", "reg/t:1: not found"))]
    cluster = Cluster([wrong])
    found = Followed(cluster, QUICK).run()
    assert found.exit_code == 71 and cluster.deleted == 1
    assert found.text == (
        "pod p0-0 waits: ErrImagePull: reg/t:1: not found; see whether the image has this name, "
        "and the cluster may pull it; the job was deleted"
    )


def test_an_image_that_comes_at_the_second_try_does_not() -> None:
    wrong = [job_set(), pod(**waits("ErrImagePull", "timeout"))]
    job = Followed(Cluster([wrong, [job_set(), pod()], DONE]), replace(LIMITS, notice_s=5.0))
    assert job.run().exit_code == 0


def test_pods_that_do_not_all_start_in_time_end_the_job() -> None:
    waiting = [job_set(nodes=2), pod(0), pod(1, unplaced="0/1 nodes are available")]
    cluster = Cluster([waiting])
    found = Followed(cluster, replace(LIMITS, wait_s=0.1)).run()
    assert found.exit_code == 72 and cluster.deleted == 1
    assert found.text.startswith("not all pods started within 0.1 s: pod p1-0 waits for a node: 0/")


def test_a_job_that_cannot_be_deleted_is_told_how() -> None:
    cluster = Cluster([[job_set(), pod(unplaced="no")]])
    cluster.refuses_delete = HostError("no way")
    found = Followed(cluster, replace(LIMITS, wait_s=0.0)).run()
    assert found.text.endswith("no way; end it yourself: kubectl delete jobset/train")


def test_a_job_that_a_queue_holds_back_has_all_time() -> None:
    held = [job_set(suspend=True)]
    job = Followed(Cluster([held] * 20 + [DONE]), replace(LIMITS, wait_s=0.1))
    assert job.run().exit_code == 0
    assert job.said == ["job train is suspended: a queue such as Kueue holds it back"]


def test_pods_that_are_started_again_are_told_with_the_reason_and_followed() -> None:
    lost = [job_set(), pod(**ended(143))]
    again = [job_set(restarts=1), pod(0, 1)]
    done = [job_set("Completed", restarts=1), pod(0, 1, **ended(0))]
    job = Followed(Cluster([[job_set(), pod()], lost, again, done]))
    assert job.run().exit_code == 0
    assert job.said == [
        "job train is started again (restart 1): pod p0-0 ended with code 143",
    ]
    assert job.shown == [b"hello of p0-0\n", b"hello of p0-1\n"]


def test_restarts_before_our_time_are_not_told() -> None:
    done = [job_set("Completed", restarts=3), pod(0, 3, **ended(0))]
    job = Followed(Cluster([[job_set(restarts=3), pod(0, 3)], done]), is_ours=False)
    assert job.run().exit_code == 0 and job.said == []


def test_a_cluster_that_does_not_answer_for_a_while_ends_nothing() -> None:
    silent: list[Answer] = [HostError("--k8s: it was refused")] * 3
    job = Followed(Cluster([[job_set(), pod()], *silent, AuthError("--k8s: who are you"), DONE]))
    assert job.run().exit_code == 0
    assert job.said == [
        "it was refused; asking on, the job does not need us",
        "who are you; asking on, the job does not need us",
    ]


def test_a_cluster_that_does_not_answer_for_long_is_an_error() -> None:
    job = Followed(Cluster([HostError("--k8s: refused")]), replace(LIMITS, silent_s=0.1))
    with pytest.raises(HostError, match="refused"):
        job.run()


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_refusal_at_the_first_look_is_an_error(is_ours: bool) -> None:
    with pytest.raises(UsageError, match="no such context"):
        Followed(Cluster([UsageError("no such context")]), is_ours=is_ours).run()


def test_who_follows_a_job_is_told_at_once_that_there_is_no_cluster() -> None:
    with pytest.raises(HostError, match="refused"):
        Followed(Cluster([HostError("refused"), DONE]), is_ours=False).run()


def test_a_refusal_in_the_middle_may_pass() -> None:
    job = Followed(Cluster([[job_set(), pod()], PreflightError("forbidden"), DONE]))
    assert job.run().exit_code == 0 and job.said[0].startswith("forbidden; asking on")


def test_half_an_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([DONE])
    whole, answers = (
        cluster.run,
        iter(['{"kind": "List", "it', "[]", '{"items": [{"kind": "Pod"}]}']),
    )
    monkeypatch.setattr(cluster, "run", lambda *words: next(answers, None) or whole(*words))
    job = Followed(cluster)
    assert job.run().exit_code == 0
    assert "--k8s" not in job.said[0] and "what `kubectl get` prints cannot be read" in job.said[0]


def test_a_job_that_is_not_there_is_told() -> None:
    with pytest.raises(NotThereError, match="there is no job train to follow; see those there are"):
        Followed(Cluster([[]]), is_ours=False).run()


def test_a_job_of_ours_that_is_gone_before_the_first_look_was_deleted() -> None:
    found = Followed(Cluster([[]])).run()
    assert found.exit_code == 143 and "was deleted by somebody else" in found.text


def test_a_job_that_somebody_deletes_is_told_when_its_pods_are_gone() -> None:
    job = Followed(Cluster([[job_set(), pod()], [pod()], [pod()], []]))
    found = job.run()
    assert found.exit_code == 143
    assert found.text == (
        "job train was deleted by somebody else (its JobSet is not there any more)"
    )


def test_a_stop_deletes_the_job_and_waits_for_its_pods() -> None:
    running = [job_set(), pod()]
    cluster = Cluster([running, running, [pod()], []])
    job = Followed(cluster, stops=[SIGINT])
    found = job.run()
    assert (found.exit_code, found.text, cluster.deleted) == (130, "job train was stopped", 1)
    assert job.said == [
        "asked Kubernetes to end job train: its pods have 30 s to save what they did (again: leave "
        "now)"
    ]


def test_a_second_stop_leaves_at_once() -> None:
    job = Followed(Cluster([[job_set(), pod()]]), stops=[SIGINT, SIGINT])
    found = job.run()
    assert found.exit_code == 130 and found.text.startswith("left job train, whose end may take")


def test_pods_that_do_not_end_are_left_after_their_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_xdist.launcher.k8s.follow._END_MORE_S", 0.1)
    job = Followed(Cluster([[job_set(), pod()]]), replace(LIMITS, grace_s=0.1), [SIGTERM])
    started_s = time.monotonic()
    assert job.run().exit_code == 143 and time.monotonic() - started_s < 30


def test_a_stop_that_does_not_reach_the_cluster_says_how_to_end_the_job() -> None:
    cluster = Cluster([[job_set(), pod()]])
    cluster.refuses_delete = HostError("--k8s: no way")
    found = Followed(cluster, stops=[SIGINT]).run()
    assert found.exit_code == 130
    assert found.text == "no way; end the job yourself: kubectl delete jobset/train"


def test_a_terminal_that_is_gone_leaves_the_job_alone() -> None:
    cluster = Cluster([[job_set(), pod()]])
    found = Followed(cluster, stops=[SIGHUP]).run()
    assert (found.exit_code, cluster.deleted) == (129, 0)
    assert found.text == "left job train, which goes on; end it: kubectl delete jobset/train"


def test_who_only_follows_a_job_never_ends_it() -> None:
    cluster = Cluster([[job_set(), pod(unplaced="no room")]])
    left = Followed(cluster, stops=[SIGINT], is_ours=False).run()
    assert left.exit_code == 130 and left.text.startswith("left job train, which goes on; end it")
    waited = Followed(cluster, replace(LIMITS, wait_s=0.0), is_ours=False).run()
    assert waited.exit_code == 72 and waited.text.endswith("no room; the job is left as it is")
    assert cluster.deleted == 0


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    Followed(Cluster([[job_set(), pod()], DONE])).run()
    assert threading.active_count() == before

"""How a job stands, read from what the cluster says of its JobSet, its Job and its pods. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_INDEX = "batch.kubernetes.io/job-completion-index"
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
# Reasons for which a container waits that do not pass: the image, or what the pod is made of.
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_BROKEN = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `code` is that of its container, None while it has none.

    `waits` and `why` are the reason for which the container waits, or ended, in Kubernetes' word
    and in its sentence; `unplaced` is why no node takes the pod; `taken` why it is being taken away
    (evicted, preempted, its node is lost). "" where there is nothing to say.
    """

    name: str
    uid: str
    index: int
    attempt: int
    node: str = ""
    has_started: bool = False
    code: int | None = None
    waits: str = ""
    why: str = ""
    unplaced: str = ""
    taken: str = ""

    @property
    def has_ended(self) -> bool:
        return self.code is not None

    @property
    def out_of_memory(self) -> bool:
        return self.has_ended and self.waits == "OOMKilled"

    @property
    def image_fails(self) -> bool:
        return self.waits in _IMAGE

    @property
    def cannot_start(self) -> bool:
        """Whether it waits for what another look will hardly find."""
        return self.waits in (*_IMAGE, *_BROKEN)


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at a job; without a `uid` there is no JobSet.

    `state` is "Completed", "Failed" or "", `reason` and `why` the word and sentence of that;
    `job_why` is what the Job says of its failure, which names a pod's exit code.
    """

    uid: str = ""
    restarts: int = 0
    state: str = ""
    reason: str = ""
    why: str = ""
    job_why: str = ""
    suspended: bool = False
    nodes: int = 0
    pods: tuple[Pod, ...] = ()

    def newest(self) -> list[Pod]:
        """The pods of the newest attempt, by index; of several for one index the last one made."""
        last = max((pod.attempt for pod in self.pods), default=0)
        found = {pod.index: pod for pod in self.pods if pod.attempt == last}
        return [found[index] for index in sorted(found)]

    def heads(self) -> list[Pod]:
        """The pods with index 0, those of older attempts first."""
        return sorted((pod for pod in self.pods if pod.index == 0), key=lambda pod: pod.attempt)

    def all_started(self) -> bool:
        return sum(pod.has_started for pod in self.newest()) >= self.nodes > 0


def read(items: Iterable[Mapping[str, Any]]) -> Sight:
    """The sight that the items of a `kubectl get jobsets,jobs,pods -o json` are."""
    kinds: dict[str, list[Mapping[str, Any]]] = {"JobSet": [], "Job": [], "Pod": []}
    for item in items:
        kinds.setdefault(str(item.get("kind")), []).append(item)
    pods = sorted(kinds["Pod"], key=lambda pod: pod["metadata"].get("creationTimestamp") or "")
    if not kinds["JobSet"]:
        return Sight(pods=tuple(map(_pod, pods)))
    job_set = kinds["JobSet"][0]
    status = job_set.get("status") or {}
    ended = _condition(status, "Completed") or _condition(status, "Failed") or {}
    jobs = [_condition(job.get("status") or {}, "Failed") for job in kinds["Job"]]
    # What fails is first marked, and called failed once all its pods have ended.
    jobs += [_condition(job.get("status") or {}, "FailureTarget") for job in kinds["Job"]]
    return Sight(
        uid=job_set["metadata"]["uid"],
        restarts=int(status.get("restarts") or 0),
        state=ended.get("type", ""),
        reason=ended.get("reason", ""),
        why=ended.get("message", ""),
        job_why=next((found.get("message", "") for found in jobs if found), ""),
        suspended=bool(job_set.get("spec", {}).get("suspend")),
        nodes=_nodes(job_set),
        pods=tuple(map(_pod, pods)),
    )


def _nodes(job_set: Mapping[str, Any]) -> int:
    found = job_set.get("spec", {}).get("replicatedJobs") or [{}]
    return int(found[0].get("template", {}).get("spec", {}).get("parallelism") or 1)


def _pod(item: Mapping[str, Any]) -> Pod:
    about, status = item["metadata"], item.get("status") or {}
    labels = {**(about.get("annotations") or {}), **(about.get("labels") or {})}
    containers = status.get("containerStatuses") or [{}]
    state = containers[0].get("state") or {}
    ended, waiting = state.get("terminated"), state.get("waiting") or {}
    code = int(ended["exitCode"]) if ended else None
    if code is None and status.get("phase") == "Failed":
        code = 137  # its node is gone, and with it what it ended with
    placed = _condition(status, "PodScheduled", "False")
    taken = _condition(status, "DisruptionTarget") or {}
    return Pod(
        name=about["name"],
        uid=about["uid"],
        index=int(labels.get(_INDEX, 0)),
        attempt=int(labels.get(_ATTEMPT, 0)),
        node=(item.get("spec") or {}).get("nodeName", ""),
        has_started=code is not None or "running" in state,
        code=code,
        waits=(ended or waiting).get("reason", "") or status.get("reason", ""),
        why=(ended or waiting).get("message", "") or status.get("message", ""),
        unplaced=placed.get("message", "") if placed else "",
        taken=taken.get("message", "") or taken.get("reason", ""),
    )


def _condition(
    status: Mapping[str, Any], kind: str, value: str = "True"
) -> Mapping[str, Any] | None:
    """The condition of a status of this type, where it has this value."""
    found = status.get("conditions") or []
    return next((one for one in found if one["type"] == kind and one["status"] == value), None)

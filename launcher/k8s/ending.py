"""What a job that is over ended with: an exit code of the contract, and a sentence. Pure."""

import re
from collections.abc import Iterable

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.head.ending import Ending
from torch_xdist.launcher.k8s.sight import Pod, Sight

SIGTERM = 128 + 15
_OUT_OF_MEMORY = 137
# The Job controller's words for a pod that ended the job.
_CODE = re.compile(r"Container \S+ for pod \S*?([^/\s]+) failed with exit code (\d+)")
# What a pod ends with because of another one.
_ECHOES = (int(ExitCode.HOST), SIGTERM)


def ending(name: str, sight: Sight, seen: Iterable[Pod]) -> Ending:
    """The end of a job.

    Args:
        sight: the last one, in which the JobSet has ended.
        seen: its pods as they were last seen, also those that are gone.
    """
    if sight.state == "Completed":
        return Ending(0)
    pods = list(seen)
    code, why = cause(pods, max((pod.attempt for pod in pods), default=0), sight)
    text = f"job {name} failed: {why}"
    if sight.reason == "ReachedMaxRestarts" and sight.restarts:
        times = "once" if sight.restarts == 1 else f"{sight.restarts} times"
        text += f"; its pods had been started again {times}, which is the limit"
        code = int(ExitCode.RESTARTS_USED_UP)
    return Ending(code, text=text)


def cause(pods: Iterable[Pod], attempt: int, sight: Sight) -> tuple[int, str]:
    """The exit code of an attempt and why: no memory first, then the pod that was no echo."""
    failed = [pod for pod in pods if pod.attempt == attempt and pod.code]
    failed.sort(key=lambda pod: pod.index)
    for pod in failed:
        if pod.out_of_memory:
            more = "give the pods more by --memory"
            return _OUT_OF_MEMORY, f"{_named(pod)} ran out of memory (OOMKilled); {more}"
    for pod in failed:
        if pod.waits in ("StartError", "ContainerCannotRun"):
            told = pod.why or pod.waits
            return int(ExitCode.PREFLIGHT), (
                f"{_named(pod)} could not start its command: {told}; torch-xdist must be installed "
                "in the image, or --python name the interpreter there that has it"
            )
    own = [pod for pod in failed if pod.code not in _ECHOES]
    heads = [pod for pod in own if pod.index == 0]
    # Its pod may have gone before anybody looked.
    told_by_job = _CODE.search(sight.job_why)
    if told_by_job and not heads and int(told_by_job[2]) not in _ECHOES:
        return int(told_by_job[2]), f"pod {told_by_job[1]} ended with code {told_by_job[2]}"
    for pod in (own or failed)[:1]:
        taken = f" ({pod.taken})" if pod.taken else ""
        return pod.code or 0, f"{_named(pod)} ended with code {pod.code}{taken}"
    if told_by_job:
        return int(told_by_job[2]), f"pod {told_by_job[1]} ended with code {told_by_job[2]}"
    return int(ExitCode.FAILED), sight.job_why or sight.why or sight.reason


def _named(pod: Pod) -> str:
    return f"pod {pod.name} (node {pod.node})" if pod.node else f"pod {pod.name}"

"""Which workers TPU VMs have, and whether they are ready: what gcloud answers when it is asked.

A name is that of a TPU VM, or of a queued resource, whose TPU VMs are then meant, all slices of it.
Source: the Cloud TPU API v2, resources `nodes` and `queuedResources`.
"""

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from torch_xdist.launcher.facts import tpu
from torch_xdist.launcher.facts.errors import DevicesError, HostError, UsageError
from torch_xdist.launcher.facts.host_list import Host

ADVICE = "install the Google Cloud CLI"
TPU_VM = ("compute", "tpus", "tpu-vm")
_QUEUED = ("compute", "tpus", "queued-resources")
_ANSWER_S = 120
_TODO = {
    **dict.fromkeys(("CREATING", "STARTING", "RESTARTING", "REIMAGING"), "wait until it is"),
    **dict.fromkeys(("REPAIRING",), "wait until Google has repaired it"),
    **dict.fromkeys(("STOPPED", "STOPPING"), "start it: {program} start {name}"),
    **dict.fromkeys(("PREEMPTED", "TERMINATED", "DELETING"), "delete it and create it again"),
}
# ACCEPTED is what WAITING_FOR_RESOURCES was called before.
_TODO_IN_QUEUE = {
    **dict.fromkeys(
        ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"),
        "it is in the queue: look at it now and then: {program} describe {name}",
    ),
    **dict.fromkeys(
        ("FAILED", "SUSPENDING", "SUSPENDED", "DELETING"),
        "it will not become so any more: delete it ({program} delete {name} --force) and create it "
        "again",
    ),
}


def workers(command: Sequence[str], name: str, user: str = "") -> list[Host]:
    """The workers of a TPU that is ready, each with as many ranks as it has chips.

    Args:
        command: gcloud and where the TPUs are, such as ["gcloud", "--project=p", "--zone=z"].
        name: of a TPU VM, or of a queued resource: those of its slices then, one after the other.

    Raises:
        HostError: gcloud does not say it, or the TPU is not ready.
        UsageError: the number of chips of its type is not known.
    """
    asked = _describe(command, TPU_VM, name)
    if asked.returncode == 0:
        return _workers_of(command[0], name, user, _read(name, asked.stdout))
    queued = _describe(command, _QUEUED, name)
    if queued.returncode != 0:
        # What it says of the TPU VM: more people have those.
        told = (lines_of(asked.stderr) or [f"it ended with code {asked.returncode}"])[-1]
        raise HostError(
            f"TPU {name}: gcloud cannot describe it: {told}; --zone and --project say where it is"
        )
    found = []
    for node in _nodes(command[0], name, _read(name, queued.stdout)):
        asked = _describe(command, TPU_VM, node)
        if asked.returncode != 0:
            told = (lines_of(asked.stderr) or [f"it ended with code {asked.returncode}"])[-1]
            raise HostError(
                f"TPU {name}: its TPU VM {node} is gone: {told}; delete the queued resource and "
                "create it again"
            )
        found += _workers_of(command[0], node, user, _read(node, asked.stdout))
    return found


def _describe(
    command: Sequence[str], kind: Sequence[str], name: str
) -> "subprocess.CompletedProcess[str]":
    program, *places = command
    return ask(f"TPU {name}", [program, *kind, "describe", name, *places, "--format=json"])


def _read(name: str, answer: str) -> Mapping[str, Any]:
    try:
        return dict(json.loads(answer))
    except (TypeError, ValueError) as error:
        raise HostError(
            f"TPU {name}: the answer of `gcloud ... describe` cannot be read ({error}); it "
            f"begins with {answer[:40]!r}"
        ) from error


def _workers_of(program: str, name: str, user: str, found: Mapping[str, Any]) -> list[Host]:
    """The workers of one TPU VM, which gcloud has described so."""
    if (state := found.get("state")) != "READY":
        todo = _TODO.get(str(state), "look at it: {program} describe {name}")
        todo = todo.format(program=f"{program} {' '.join(TPU_VM)}", name=name)
        raise HostError(f"TPU {name} is {state}, and READY is needed; {todo}")
    endpoints = found.get("networkEndpoints") or []
    if not endpoints:
        raise HostError(f"TPU {name} is READY without networkEndpoints; create it again")
    slots = _chips_per_host(name, found, len(endpoints))
    return [
        Host(f"{name}-w{index}", user, slots=slots, worker=index) for index in range(len(endpoints))
    ]


def _nodes(program: str, name: str, found: Mapping[str, Any]) -> list[str]:
    """The TPU VMs of a queued resource that is active, slice 0 first."""
    told = found.get("state") or {}
    state = str(told.get("state")) if isinstance(told, dict) else str(told)
    if state != "ACTIVE":
        todo = _TODO_IN_QUEUE.get(state, "look at it: {program} describe {name}")
        todo = todo.format(program=f"{program} {' '.join(_QUEUED)}", name=name)
        why = _why_failed(told)
        raise HostError(f"queued resource {name} is {state}{why}, and ACTIVE is needed; {todo}")
    names = []
    for spec in (found.get("tpu") or {}).get("nodeSpec") or []:
        # v2 and v2alpha1 call it by different names.
        several = spec.get("multisliceParams") or spec.get("multiNodeParams")
        if several:
            prefix = several.get("nodeIdPrefix") or name
            names += [f"{prefix}-{index}" for index in range(int(several.get("nodeCount", 0)))]
        elif spec.get("nodeId"):
            names.append(str(spec["nodeId"]))
    if not names:
        raise HostError(f"queued resource {name} is ACTIVE without TPU VMs; create it again")
    return names


def _why_failed(told: Any) -> str:
    failed = told.get("failedData") if isinstance(told, dict) else None
    message = ((failed or {}).get("error") or {}).get("message", "")
    return f" ({message})" if message else ""


def _chips_per_host(name: str, found: Mapping[str, Any], count: int) -> int:
    topology = (found.get("acceleratorConfig") or {}).get("topology", "")
    kind = str(found.get("acceleratorType", ""))
    try:
        if topology:
            return max(1, math.prod(tpu.parse_grid(topology)) // count)
        return tpu.slice_of(kind, 0, [""] * count).chips_per_host
    except DevicesError as error:
        raise UsageError(f"TPU {name}: {error}") from None


def ask(where: str, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Ask gcloud something.

    Args:
        where: what an error begins with.

    Raises:
        HostError: it is not there, or does not answer.
    """
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except OSError as error:
        raise HostError(
            f"{where}: {words[0]} cannot be started here ({error.strerror}); {ADVICE}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"{where}: gcloud has not answered in {_ANSWER_S} s; try by hand: {' '.join(words)}"
        ) from error


def lines_of(text: str) -> list[str]:
    """Its lines that say something."""
    return [line.strip() for line in text.splitlines() if line.strip()]

"""Which workers TPU VMs and queued resources have, and what is told of those that are not ready."""

from pathlib import Path
from typing import Any

import pytest
from gcloud_stand_in import V4_16, Gcloud

from torch_xdist.launcher.backends import tpu_vms
from torch_xdist.launcher.facts.errors import HostError, UsageError
from torch_xdist.launcher.facts.host_list import Host

WORKER = Host("pod-w1", "me", slots=4, worker=1)
ENDPOINTS = V4_16["networkEndpoints"]


def workers(
    folder: Path,
    found: Any = V4_16,
    *,
    name: str = "pod",
    user: str = "",
    queued: dict[str, Any] | None = None,
    **more: Any,
) -> list[Host]:
    Gcloud(folder, {"pod": found, **more}, queued={"later": queued} if queued else {})
    return tpu_vms.workers([f"{folder}/gcloud", "--zone=z", "--project=p"], name, user)


def test_the_workers_are_the_endpoints_in_their_order_with_a_rank_per_chip(tmp_path: Path) -> None:
    assert workers(tmp_path, user="me") == [
        Host("pod-w0", "me", slots=4, worker=0),
        WORKER,
    ]


def test_without_a_topology_the_name_of_the_type_tells_the_chips(tmp_path: Path) -> None:
    found = {"state": "READY", "acceleratorType": "v5litepod-8", "networkEndpoints": ENDPOINTS[:1]}
    assert [host.slots for host in workers(tmp_path, found)] == [8]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("CREATING", "TPU pod is CREATING, and READY is needed; wait until it is"),
        ("STOPPED", "gcloud compute tpus tpu-vm start pod"),
        ("PREEMPTED", "TPU pod is PREEMPTED, and READY is needed; delete it and create it again"),
        ("HIDDEN", "gcloud compute tpus tpu-vm describe pod"),
    ],
)
def test_a_tpu_that_is_not_ready_is_told_with_what_to_do(
    tmp_path: Path, state: str, told: str
) -> None:
    with pytest.raises(HostError, match="TPU pod is") as error:
        workers(tmp_path, {**V4_16, "state": state})
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("found", "kind", "told"),
    [
        ("{", HostError, r"TPU pod: the answer of `gcloud ... describe` cannot be read \(Expect"),
        ("null", HostError, r"TPU pod: the answer of `gcloud ... describe` cannot be read"),
        ({**V4_16, "networkEndpoints": []}, HostError, "pod is READY without networkEndpoints"),
        (
            {"state": "READY", "acceleratorType": "v9-8", "networkEndpoints": ENDPOINTS},
            UsageError,
            "TPU pod: TPU type 'v9-8' is unknown",
        ),
    ],
)
def test_an_answer_that_is_none_is_told(
    tmp_path: Path, found: Any, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        workers(tmp_path, found)


def test_a_tpu_that_gcloud_does_not_know_is_told_in_its_words(tmp_path: Path) -> None:
    told = r"TPU no: gcloud cannot describe it: ERROR: \(gcloud.*NOT_FOUND.*; --zone and --project"
    with pytest.raises(HostError, match=told):
        workers(tmp_path, name="no")


def test_a_machine_without_gcloud_is_told() -> None:
    with pytest.raises(HostError, match=r"TPU pod: /no/gcloud cannot be started here \(No such"):
        tpu_vms.workers(["/no/gcloud"], "pod")


def test_a_gcloud_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu_vms, "_ANSWER_S", 0.2)
    (tmp_path / "gcloud").write_text("#!/bin/sh\nexec sleep 100\n")
    (tmp_path / "gcloud").chmod(0o755)
    with pytest.raises(HostError, match=r"TPU pod: gcloud has not answered in 0.2 s; try by hand"):
        tpu_vms.workers([f"{tmp_path}/gcloud"], "pod")


def queued(state: str, **of_state: Any) -> dict[str, Any]:
    """A queued resource as gcloud describes it, of one TPU VM."""
    spec = {"nodeId": "pod", "parent": "projects/p/locations/z"}
    return {"state": {"state": state, **of_state}, "tpu": {"nodeSpec": [spec]}}


def test_a_queued_resource_stands_for_its_tpu_vm(tmp_path: Path) -> None:
    found = workers(tmp_path, name="later", user="me", queued=queued("ACTIVE"))
    assert found == [Host("pod-w0", "me", slots=4, worker=0), WORKER]


@pytest.mark.parametrize("several", ["multisliceParams", "multiNodeParams"])
def test_a_queued_resource_of_several_slices_stands_for_all(tmp_path: Path, several: str) -> None:
    told = queued("ACTIVE")
    told["tpu"]["nodeSpec"] = [{several: {"nodeCount": 2, "nodeIdPrefix": "s"}}]
    slices = {"s-0": V4_16, "s-1": V4_16}
    found = workers(tmp_path, name="later", queued=told, **slices)
    assert [host.name for host in found] == ["s-0-w0", "s-0-w1", "s-1-w0", "s-1-w1"]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            queued("WAITING_FOR_RESOURCES"),
            "queued resource later is WAITING_FOR_RESOURCES, and ACTIVE is needed; it is in the "
            "queue: look at it now and then: {gcloud} compute tpus queued-resources describe later",
        ),
        (
            queued("FAILED", failedData={"error": {"message": "no capacity"}}),
            "queued resource later is FAILED (no capacity), and ACTIVE is needed; it will not "
            "become so any more: delete it ({gcloud} compute tpus queued-resources delete later "
            "--force) and create it again",
        ),
        (
            {"state": {"state": "ACTIVE"}, "tpu": {"nodeSpec": []}},
            "queued resource later is ACTIVE without TPU VMs; create it again",
        ),
    ],
)
def test_a_queued_resource_that_has_no_tpu_now_is_told_with_what_to_do(
    tmp_path: Path, told: dict[str, Any], words: str
) -> None:
    with pytest.raises(HostError) as error:
        workers(tmp_path, name="later", queued=told)
    assert str(error.value) == words.format(gcloud=f"{tmp_path}/gcloud")


def test_a_tpu_vm_of_a_queued_resource_that_is_gone_is_named(tmp_path: Path) -> None:
    told = queued("ACTIVE")
    told["tpu"]["nodeSpec"][0]["nodeId"] = "gone"
    with pytest.raises(HostError, match=r"TPU later: its TPU VM gone is gone: ERROR: .*NOT_FOUND"):
        workers(tmp_path, name="later", queued=told)

"""The plan of a job on Kubernetes: what is refused, and which pods end the job."""

from dataclasses import replace

import pytest

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.k8s import plan as plans
from torch_xdist.launcher.k8s.plan import Plan

PLAN = Plan("train", "reg/t:1", 2, ("true",))
TPU = {"tpu_topology": "2x4", "tpu_accelerator": "tpu-v5-lite-podslice"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "Train"}, "--k8s 'Train': the name of a job has lower-case letters, digits and"),
        ({"name": "1st"}, "a letter first and no '-' last"),
        ({"name": "a" * 46}, "would have more than 63; at most 45 fit"),
        ({"name": "a" * 45, "nodes": 11}, "it has 45 characters, and the pods' names would have"),
        ({"namespace": "a_b"}, "--namespace 'a_b': a namespace has lower-case letters, digits and"),
        ({"image": ""}, "--image '': the image that the pods run is needed, such as"),
        ({"image": "a b"}, "--image 'a b': the image that the pods run is needed"),
        ({"cpu": "two"}, "--cpu 'two': a quantity of Kubernetes is needed, such as 8, 500m or"),
        ({"memory": "8GB"}, "--memory '8GB': a quantity of Kubernetes"),
        ({"shm_size": "-1"}, "--shm-size '-1': a quantity of Kubernetes"),
        ({"tpu_topology": "2x4"}, "--tpu-accelerator and --tpu-topology go together, such as"),
        ({**TPU, "gpus": 1}, "--gpus-per-node and --tpu-topology: a pod has one or the other"),
        ({**TPU, "tpu_topology": "8"}, "--tpu-topology '8': that of a slice is needed, such as"),
        ({**TPU, "nodes": 3}, "--tpu-topology 2x4: 8 chips on --nodes 3 are not equally many on e"),
        ({"argv": ("a\udcff",)}, "'a\\udcff' is no UTF-8, and a manifest holds nothing else; name"),
    ],
)
def test_what_kubernetes_could_not_take_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        replace(PLAN, **changes).check()
    assert told in str(refused.value) and refused.value.exit_code == 2


def test_a_name_of_45_characters_and_ten_pods_fit() -> None:
    assert replace(PLAN, name="a" * 45, nodes=10).check().name == "a" * 45


def test_chips_of_a_slice_are_shared_out_to_the_pods() -> None:
    assert replace(PLAN, **TPU).tpu_chips == 4 and PLAN.tpu_chips == 0


def test_only_what_kubernetes_took_away_is_started_again_where_nothing_is_asked_for() -> None:
    assert PLAN.final_codes() == ("NotIn", (73, 75, 143)) and PLAN.restarts == 10


def test_restarts_that_are_asked_for_are_not_spent_on_what_would_only_repeat() -> None:
    operator, codes = replace(PLAN, max_restarts=3).final_codes()
    assert operator == "In" and {2, 70, 71, 72, 74, 76, 77, 124} <= set(codes)
    assert not {1, 73, 75, 137, 143} & set(codes)
    assert replace(PLAN, max_restarts=3).restarts == 3


def test_a_pod_has_longer_than_its_ranks_to_end() -> None:
    assert PLAN.grace_s == 60
    assert replace(PLAN, graceful_s=90.5).grace_s == 121
    assert replace(PLAN, graceful_s=float("inf")).grace_s == 24 * 3600


def test_the_pods_are_told_which_they_are_and_where_they_meet() -> None:
    words = plans.command("train", 2, ["xla-run"], ["-n", "1"], ["python", "t.py"])
    assert words[:5] == ("xla-run", "--nnodes", "2", "--node-rank", plans.NODE_RANK)
    assert words[5:9] == ("--master-addr", "train-workers-0-0.train", "--master-port", "29500")
    assert words[9:] == ("-n", "1", "--", "python", "t.py")

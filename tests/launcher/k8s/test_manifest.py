"""The manifest: as it is kept and read, and as a parser and Kubernetes take it."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from jobset_schema import SCHEMA
from kubectl_stand_in import expanded

from torch_xdist.launcher.k8s import manifest
from torch_xdist.launcher.k8s.plan import NODE_RANK, Plan

HERE = Path(__file__).parent
SEAL = "00" * 32
ARGV = ("xla-run", "--nnodes", "2", "--node-rank", NODE_RANK, "--", "python", "train.py", "$(A) b")
TPU = {"tpu_topology": "2x4", "tpu_accelerator": "tpu-v5-lite-podslice"}
PLANS = {
    "cpu": Plan("train", "reg/t:1", 2, ARGV, {"LEVEL": "a: 'b'"}, {"API_KEY": "hush"}),
    "gpu": Plan("train", "reg/t:1", 2, ARGV, gpus=8, cpu="32", memory="256Gi", max_restarts=3),
    "tpu": Plan("train", "reg/t:1", 2, ARGV, namespace="ml", **TPU),
}
# What words and values can hold: all of Unicode but its halves of pairs, and no zero.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def parsed(plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Secret and the JobSet."""
    secret, job_set = yaml.safe_load_all(manifest.whole(plan, SEAL))
    return secret, job_set


def pod(plan: Plan) -> dict[str, Any]:
    job = parsed(plan)[1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job["template"]["spec"]


@pytest.mark.parametrize("kind", PLANS)
def test_a_manifest_is_as_it_is_kept(kind: str) -> None:
    assert manifest.whole(PLANS[kind], SEAL) == (HERE / f"manifest_{kind}.yaml").read_text()


def fit(spec: dict[str, Any]) -> None:
    """Raise ValidationError where JobSet's published schema does not take the spec of a JobSet."""
    jsonschema.validate(spec, json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("kind", PLANS)
def test_a_manifest_is_what_jobsets_published_schema_takes(kind: str) -> None:
    fit(parsed(PLANS[kind])[1]["spec"])


def test_the_schema_refuses_names_types_and_actions_that_there_are_not() -> None:
    good = parsed(PLANS["gpu"])[1]["spec"]
    for place, wrong in [
        (("failurePolicy", "maxRestarts"), "3"),
        (("failurePolicy", "rules", 0, "action"), "GiveUp"),
        (("network", "enableDNSHostnames"), "yes"),
        (("replicatedJobs", 0, "template", "spec", "completion"), "Indexed"),
        (("replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0, "name"), 7),
    ]:
        spec = copy.deepcopy(good)
        *way, last = place
        holder: Any = spec
        for step in way:
            holder = holder[step]
        holder[last] = wrong
        with pytest.raises(jsonschema.ValidationError):
            fit(spec)


@pytest.mark.parametrize("kind", PLANS)
def test_a_manifest_can_be_read_on_a_screen(kind: str) -> None:
    assert max(map(len, manifest.whole(PLANS[kind], SEAL).splitlines())) <= 100


@given(st.lists(TEXTS), st.dictionaries(st.from_regex(r"[A-Z_]+", fullmatch=True), TEXTS))
@example(["\x85\u2028\u2029\ufeff\ufffe\uffff\x7f\x80", "$$($(A)", "\U0001f600", "- x: &a *b"], {})
@example(["", " ", "\n", "'", '"', "\\", "#", "null", "$", "$$(A)", "%", "@"], {"A": "$(A)$"})
def test_words_and_values_come_back_as_they_were(words: list[str], env: dict[str, str]) -> None:
    secrets = {f"S{name}": value for name, value in env.items()}
    plan = Plan("train", "reg/t:1", 1, tuple(words), env, secrets)
    secret, _ = parsed(plan)
    assert secret["stringData"] == {"XLA_RUN_SECRET": SEAL, **secrets}
    container = pod(plan)["containers"][0]
    # What a $(NAME) left over would be replaced by shows that there is none.
    others = {"A": "REPLACED"}
    assert [expanded(word, others) for word in container["command"] or []] == words
    found = {one["name"]: expanded(one["value"], others) for one in container.get("env", [])}
    assert found == env


def test_the_number_of_a_pod_is_left_to_kubernetes() -> None:
    command = pod(PLANS["cpu"])["containers"][0]["command"]
    assert command[4] == "$(JOB_COMPLETION_INDEX)" and command[-1] == "$$(A) b"


def test_what_looks_like_a_secret_stands_in_no_job_set() -> None:
    text = manifest.job_set(PLANS["cpu"])
    assert "hush" not in text and SEAL not in text


def test_a_secret_of_a_job_goes_with_it() -> None:
    found = yaml.safe_load(manifest.secret(PLANS["cpu"], SEAL, "u-1"))
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}
    assert found["metadata"]["ownerReferences"] == [{**owner, "uid": "u-1"}]


def test_pods_with_devices_are_told_which_they_have() -> None:
    gpu, tpu = (pod(PLANS[kind])["containers"][0] for kind in ("gpu", "tpu"))
    assert gpu["env"] == [{"name": "PJRT_DEVICE", "value": "CUDA"}]
    assert tpu["env"] == [{"name": "PJRT_DEVICE", "value": "TPU"}]
    assert tpu["resources"]["limits"] == {"google.com/tpu": "4"}


def test_a_device_that_the_user_names_wins() -> None:
    plan = Plan("train", "reg/t:1", 1, ARGV, {"PJRT_DEVICE": "CPU"}, gpus=1)
    assert pod(plan)["containers"][0]["env"] == [{"name": "PJRT_DEVICE", "value": "CPU"}]


def test_the_codes_of_a_policy_are_sorted_as_kubernetes_demands() -> None:
    for plan in PLANS.values():
        job = parsed(plan)[1]["spec"]["replicatedJobs"][0]["template"]["spec"]
        codes = job["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
        assert codes == sorted(set(codes)) and 0 not in codes

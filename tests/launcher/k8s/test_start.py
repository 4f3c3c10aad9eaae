"""What is made in the cluster, and what is left where that fails."""

from pathlib import Path

import pytest
import yaml
from kubectl_stand_in import REFUSED, calls, stand_in

from torch_xdist.launcher.facts.errors import DuplicateJobError, HostError
from torch_xdist.launcher.k8s import start
from torch_xdist.launcher.k8s.kubectl import Kubectl
from torch_xdist.launcher.k8s.plan import Plan

PLAN = Plan("train", "reg/t:1", 1, ("true",), secrets={"API_KEY": "hush"})
EXISTS = 'Error from server (AlreadyExists): secrets "train-xla-run" already exists'


def create(folder: Path, monkeypatch: pytest.MonkeyPatch, *faults: str) -> None:
    monkeypatch.setenv("PATH", stand_in(folder, {"create": faults}))
    start.create(Kubectl(), PLAN)


def made(folder: Path) -> list[tuple[str, str]]:
    """(verb, kind) of every call; of what was deleted its name."""
    found = []
    for words, given in calls(folder):
        found.append((words[0], yaml.safe_load(given)["kind"] if given else words[1]))
    return found


def test_the_secret_is_made_after_its_job_set_and_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, monkeypatch)
    assert made(tmp_path) == [("create", "JobSet"), ("create", "Secret")]
    secret = yaml.safe_load(calls(tmp_path)[1][1])
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "uid-of-train"
    assert len(secret["stringData"]["XLA_RUN_SECRET"]) == 64


def test_no_secret_stands_in_the_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path, monkeypatch)
    words = " ".join(word for call, _ in calls(tmp_path) for word in call)
    seal = yaml.safe_load(calls(tmp_path)[1][1])["stringData"]["XLA_RUN_SECRET"]
    assert "hush" not in words and seal not in words


def test_every_job_has_a_seal_of_its_own() -> None:
    assert start.seal() != start.seal()


def test_a_name_that_is_taken_is_told_with_both_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 'Error from server (AlreadyExists): jobsets.jobset.x-k8s.io "train" already exists'
    with pytest.raises(DuplicateJobError) as refused:
        create(tmp_path, monkeypatch, taken)
    assert refused.value.exit_code == 74 and made(tmp_path) == [("create", "JobSet")]
    told = str(refused.value)
    assert "follow it: xla-run --k8s train; or delete it: kubectl delete jobset/train" in told


def test_a_secret_that_is_left_over_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, monkeypatch, "", EXISTS)
    assert made(tmp_path)[-1] == ("replace", "Secret")


def test_a_job_without_its_secret_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HostError, match="was refused"):
        create(tmp_path, monkeypatch, "", REFUSED)
    assert made(tmp_path)[-1] == ("delete", "jobsets.jobset.x-k8s.io/train")


def test_a_job_that_cannot_be_deleted_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", stand_in(tmp_path, {"create": ["", REFUSED], "delete": [REFUSED]}))
    with pytest.raises(
        HostError, match=r"was refused.*; its JobSet is left: kubectl delete jobset"
    ):
        start.create(Kubectl(), PLAN)

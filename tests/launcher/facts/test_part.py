"""Whether the ranks of a host are part of a larger job: from variables and TPU metadata."""

from collections.abc import Mapping

import pytest

from torch_xdist.launcher.facts import cluster, part
from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.devices import Choice
from torch_xdist.launcher.facts.errors import DevicesError, UsageError
from torch_xdist.system import tpu_metadata

TPU, CPU = Choice("TPU", ""), Choice("CPU", "")
SLICE = {
    "TPU_ACCELERATOR_TYPE": "v4-16",
    "TPU_WORKER_ID": "1",
    "TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2",
}
JOBSET = {"JOB_COMPLETION_INDEX": "2", "XLA_RUN_HOSTS": "4", "MASTER_ADDR": "js-0-0.js"}
HOST_1 = HostOfMany("a TPU slice", 1, 2, "10.0.0.1", 8547, ("10.0.0.1", "10.0.0.2"))


def of(ranks: int, choice: Choice, environ: Mapping[str, str]) -> HostOfMany | None:
    return part.of_host(cluster.detect(environ), ranks, choice, environ)


def test_all_chips_of_a_host_are_part_of_its_slice() -> None:
    assert of(4, TPU, SLICE) == HOST_1


def test_fewer_ranks_than_chips_are_a_job_of_this_host_alone() -> None:
    assert of(1, TPU, SLICE) is None


def test_a_slice_of_one_host_is_a_job_of_its_own() -> None:
    assert of(4, TPU, {"TPU_ACCELERATOR_TYPE": "v4-8"}) is None


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the metadata server of worker 1 of a v4-16 answers."""
    answers = {
        "tpu-env": "ACCELERATOR_TYPE: 'v4-16'\nWORKER_ID: '1'\n",
        "worker-network-endpoints": "a:8470:10.0.0.1,b:8470:10.0.0.2",
    }
    monkeypatch.setattr(tpu_metadata, "attribute", lambda key, limit_s: answers[key])
    return answers


def test_the_metadata_server_says_it_where_no_variable_does(metadata: dict[str, str]) -> None:
    assert of(4, TPU, {}) == HOST_1


def test_a_worker_that_the_slice_does_not_have_is_refused(metadata: dict[str, str]) -> None:
    metadata["tpu-env"] = metadata["tpu-env"].replace("'1'", "'2'")
    with pytest.raises(DevicesError, match="TPU slice v4-16: worker 2 of 2 hosts; TPU_WORKER_ID"):
        of(4, TPU, {})


@pytest.mark.parametrize("environ", [SLICE, {"TPU_ACCELERATOR_TYPE": "v4-8"}])
def test_several_slices_are_refused(environ: dict[str, str]) -> None:
    told = r"this is a host of 2 TPU slices \(MEGASCALE_NUM_SLICES\), and only the hosts of one sli"
    with pytest.raises(UsageError, match=told):
        of(4, TPU, {**environ, "MEGASCALE_NUM_SLICES": "2"})
    assert of(4, TPU, {**SLICE, "MEGASCALE_NUM_SLICES": "1"}) == HOST_1


def test_pods_with_a_slice_each_are_refused() -> None:
    told = "this is host 2 of 4 of a JobSet, but the TPU slice v4-8 has one host; chips of several"
    with pytest.raises(UsageError, match=told):
        of(4, TPU, {**JOBSET, "TPU_ACCELERATOR_TYPE": "v4-8"})


def test_on_the_cpu_the_variables_alone_say_it() -> None:
    assert of(7, CPU, {**JOBSET, "PJRT_DEVICE": "CPU"}) == cluster.detect(JOBSET)
    assert of(7, CPU, {}) is None

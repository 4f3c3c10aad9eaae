"""Which devices ranks get, from plain facts about a host."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xdist import settings as world_settings
from torch_xdist import world
from torch_xdist.launcher.facts import devices, tpu
from torch_xdist.launcher.facts.devices import Choice, Found
from torch_xdist.launcher.facts.errors import DevicesError, SettingError, UsageError

NONE = Found({"TPU": 0, "CUDA": 0}, {"TPU": False, "CUDA": False})
GPUS = Found({"TPU": 0, "CUDA": 4}, {"TPU": False, "CUDA": True})
TPUS = Found({"TPU": 4, "CUDA": 0}, {"TPU": True, "CUDA": False})
BOTH = Found({"TPU": 4, "CUDA": 4}, {"TPU": True, "CUDA": True})
NO_PLUGIN = Found({"TPU": 0, "CUDA": 2}, {"TPU": False, "CUDA": False})


@pytest.mark.parametrize(
    ("found", "kind"), [(NONE, "CPU"), (GPUS, "CUDA"), (TPUS, "TPU"), (BOTH, "TPU")]
)
def test_unset_takes_the_best_there_is(found, kind):
    assert devices.choose({}, found).kind == kind


@pytest.mark.parametrize(
    ("asked", "kind"), [("GPU", "CUDA"), ("CUDA", "CUDA"), ("cpu", "CPU"), ("TPU", "TPU")]
)
def test_what_is_asked_for_is_taken(asked, kind):
    assert devices.choose({"PJRT_DEVICE": asked}, BOTH).kind == kind


def test_an_unknown_device_is_refused():
    with pytest.raises(UsageError, match="PJRT_DEVICE='abacus' is unknown; it is TPU, CUDA, GPU"):
        devices.choose({"PJRT_DEVICE": "abacus"}, NONE)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(DevicesError, match="PJRT_DEVICE=GPU: this host has no GPU; use PJRT_DEVIC"):
        devices.choose({"PJRT_DEVICE": "GPU"}, NONE)


def test_a_device_without_its_plugin_says_what_to_install():
    with pytest.raises(DevicesError, match="this host has 2 GPUs, but JAX has no plugin for it"):
        devices.choose({"PJRT_DEVICE": "CUDA"}, NO_PLUGIN)
    choice = devices.choose({}, NO_PLUGIN)
    assert choice.kind == "CPU" and "has 2 GPUs, but JAX has no plugin" in choice.why


def test_the_start_line_is_short():
    assert devices.start_line(1, 1, Choice("CPU", ""), {}) == "1 rank on 1 host, CPU"
    assert devices.start_line(1, 2, devices.choose({"PJRT_DEVICE": "TPU"}, TPUS), {}) == (
        "1 rank on 2 hosts, TPU (ICI)"
    )
    assert devices.start_line(4, 1, devices.choose({}, GPUS), {}).endswith(
        "CUDA (NCCL); the best there is (PJRT_DEVICE is unset)"
    )


@pytest.mark.parametrize(
    ("asked", "hosts", "told"),
    [
        ("", 1, "8 ranks on 1 host, CPU (shared memory)"),
        ("host", 1, "8 ranks on 1 host, CPU (shared memory)"),
        ("gloo", 1, "8 ranks on 1 host, CPU (gloo)"),
        ("mesh", 1, "8 ranks on 1 host, CPU (gloo)"),
        ("", 2, "8 ranks on 2 hosts, CPU (TCP)"),
        ("hosts", 2, "8 ranks on 2 hosts, CPU (TCP)"),
        ("gloo", 2, "8 ranks on 2 hosts, CPU (gloo)"),
    ],
)
def test_the_start_line_says_how_the_ranks_will_exchange(asked, hosts, told):
    assert devices.start_line(8, hosts, Choice("CPU", ""), {"XDIST_TRANSPORT": asked}) == told


@pytest.mark.parametrize("asked", ["", "host", "hosts", "mesh", "gloo"])
def test_the_device_exchanges_as_the_start_line_says(asked, monkeypatch):
    monkeypatch.setenv("XDIST_TRANSPORT", asked)
    world_settings.reread()
    try:
        told = devices.start_line(2, 1, Choice("CPU", ""), {"XDIST_TRANSPORT": asked})
        assert ("shared memory" in told) == (world.transport() == "host")
    finally:
        monkeypatch.undo()
        world_settings.reread()


@pytest.mark.parametrize(
    ("nprocs", "environ", "found", "ranks"),
    [
        (None, {}, NONE, 1),
        (8, {}, NONE, 8),
        (None, {"CPU_NUM_DEVICES": "4"}, NONE, 4),
        (2, {"CPU_NUM_DEVICES": "4"}, NONE, 2),
        (None, {}, GPUS, 4),
        (None, {"GPU_NUM_DEVICES": "2"}, GPUS, 2),
        (None, {"GPU_NUM_DEVICES": "8"}, GPUS, 4),
        (None, {"CUDA_VISIBLE_DEVICES": "3,1"}, GPUS, 2),
        (3, {}, GPUS, 3),
        (None, {"TPU_NUM_DEVICES": "1"}, TPUS, 1),
    ],
)
def test_the_number_of_ranks(nprocs, environ, found, ranks):
    assert devices.local_ranks(nprocs, devices.choose(environ, found), environ, found) == ranks


@pytest.mark.parametrize(
    ("nprocs", "environ", "words"),
    [
        (5, {}, "5 ranks asked for, but this host has 4 visible GPUs; use nprocs=4 or less"),
        (2, {"CUDA_VISIBLE_DEVICES": "0"}, "2 ranks asked for, but this host has 1 visible GPUs"),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, "this host has 0 visible GPUs"),
    ],
)
def test_more_ranks_than_accelerators_are_one_sentence(nprocs, environ, words):
    with pytest.raises(DevicesError, match=words):
        devices.local_ranks(nprocs, Choice("CUDA", ""), environ, GPUS)


def test_no_ranks_are_refused():
    with pytest.raises(UsageError, match="nprocs=0: a whole number from 1 up is needed"):
        devices.local_ranks(0, Choice("CPU", ""), {}, NONE)
    with pytest.raises(SettingError, match="CPU_NUM_DEVICES: 'all' is no whole number from 1 up"):
        devices.local_ranks(None, Choice("CPU", ""), {"CPU_NUM_DEVICES": "all"}, NONE)


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2, 3"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937,MIG-1"}, ["GPU-8932f937", "MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_gpus_are_shared_out_through_the_parents_list(environ, names):
    assert devices.cuda_devices(environ, 4) == names


def test_a_rank_sees_its_own_gpu_only():
    environ = {"CUDA_VISIBLE_DEVICES": "5,7"}
    names = devices.device_variables(Choice("CUDA", ""), 1, 2, environ)
    assert names == {"PJRT_DEVICE": "CUDA", "CUDA_VISIBLE_DEVICES": "7"}


@pytest.mark.parametrize(
    ("environ", "found", "names"),
    [
        ({}, NONE, {}),
        ({}, GPUS, {"PJRT_DEVICE": "CUDA", "CUDA_VISIBLE_DEVICES": "1"}),
        ({"PJRT_DEVICE": "GPU"}, GPUS, {"CUDA_VISIBLE_DEVICES": "1"}),
        (
            {"CUDA_VISIBLE_DEVICES": "6,7"},
            GPUS,
            {"PJRT_DEVICE": "CUDA", "CUDA_VISIBLE_DEVICES": "7"},
        ),
        ({"CUDA_VISIBLE_DEVICES": "3"}, GPUS, {"PJRT_DEVICE": "CUDA"}),
        ({"PJRT_DEVICE": "CPU"}, GPUS, {}),
        ({"TPU_VISIBLE_CHIPS": "1"}, TPUS, {"PJRT_DEVICE": "TPU"}),
    ],
)
def test_a_rank_of_another_launcher_is_shown_its_own_device(environ, found, names):
    assert devices.missing_variables(1, 2, environ, found) == names


def test_a_rank_of_another_launcher_on_a_tpu_gets_its_topology():
    environ = {"TPU_ACCELERATOR_TYPE": "v4-8"}
    names = devices.missing_variables(2, 4, environ, TPUS)
    assert (names["TPU_VISIBLE_CHIPS"], names["TPU_PROCESS_BOUNDS"]) == ("2", "2,2,1")


def test_a_single_rank_of_another_launcher_keeps_every_device():
    assert devices.missing_variables(0, 1, {"PJRT_DEVICE": "CUDA"}, GPUS) == {}
    assert devices.missing_variables(0, 1, {}, NONE) == {}


def test_the_only_rank_of_a_host_is_told_its_kind_by_which_ranks_meet():
    assert devices.missing_variables(0, 1, {}, GPUS) == {"PJRT_DEVICE": "CUDA"}


def test_more_ranks_of_another_launcher_than_gpus_are_refused():
    with pytest.raises(
        DevicesError, match="5 ranks on this host, but it has 4 visible GPUs; start"
    ):
        devices.missing_variables(4, 5, {}, GPUS)


def test_a_rank_on_the_cpu_needs_no_more_than_the_kind():
    assert devices.device_variables(Choice("CPU", ""), 1, 2, {}) == {"PJRT_DEVICE": "CPU"}


def test_a_rank_on_a_tpu_gets_its_topology():
    names = devices.device_variables(Choice("TPU", ""), 1, 4, {}, tpu.slice_of("v4-8"))
    assert (names["PJRT_DEVICE"], names["TPU_VISIBLE_CHIPS"]) == ("TPU", "1")
    environ = {"TPU_ACCELERATOR_TYPE": "v6e-1"}
    names = devices.device_variables(Choice("TPU", ""), 0, 1, environ)
    assert names["TPU_PROCESS_BOUNDS"] == "1,1,1"


@given(st.integers(1, 64), st.integers(1, 64))
def test_cores_are_split_evenly_and_completely(cores, ranks):
    split = devices.split_cores(range(cores), ranks)
    assert len(split) == ranks
    if ranks > cores:
        assert split == [tuple(range(cores))] * ranks
    else:
        assert [core for part in split for core in part] == list(range(cores))
        assert max(map(len, split)) - min(map(len, split)) <= 1


def test_threads_are_the_share_of_a_rank_unless_the_user_said_it():
    assert devices.thread_variables(range(8), 4, {}) == {"OMP_NUM_THREADS": "2"}
    assert devices.thread_variables(range(2), 8, {}) == {"OMP_NUM_THREADS": "1"}
    assert devices.thread_variables(range(8), 4, {"OMP_NUM_THREADS": "3"}) == {}


def test_own_cores_are_those_of_the_affinity(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    assert sorted(devices.own_cores()) == allowed
    assert devices.own_cores(tmp_path) == allowed


def test_cores_of_one_package_are_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for core, package in enumerate((0, 1, 0, 1)):
        place = tmp_path / f"cpu{core}" / "topology"
        place.mkdir(parents=True)
        (place / "physical_package_id").write_text(f"{package}\n")
        (place / "core_id").write_text(f"{core}\n")
    assert devices.own_cores(tmp_path) == [0, 2, 1, 3]


def test_a_host_is_looked_at_without_touching_its_devices(tmp_path):
    dev, pci = tmp_path / "dev", tmp_path / "pci"
    dev.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (dev / name).touch()
    for name, vendor, device in (("a", "0x1ae0", "0x005e"), ("b", "0x1ae0", "0x9999")):
        (pci / name).mkdir(parents=True)
        (pci / name / "vendor").write_text(vendor + "\n")
        (pci / name / "device").write_text(device + "\n")
    assert devices.probe(dev, pci).counts == {"TPU": 1, "CUDA": 2}
    assert devices.probe(tmp_path / "no", tmp_path / "no").counts == {"TPU": 0, "CUDA": 0}

"""What is known of a TPU slice by torch_xla's names, without a TPU."""

import glob
import importlib
import os

import pytest

from torch_xdist import settings, world
from torch_xdist.system import tpu_metadata
from torch_xdist.torch_xla_compat import tpu_facts
from torch_xdist.torch_xla_compat.tpu_facts import MeshShape

V4_16 = """
ACCELERATOR_TYPE: 'v4-16'
TPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'
TPU_PROCESS_BOUNDS: '1,1,2'
WORKER_ID: '1'
"""
ENDPOINTS = "a-w-0:12345:10.0.0.2,a-w-1:12346:10.0.0.3"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """A machine without a TPU, without its variables, and without a metadata server."""
    for name in [n for n in os.environ if "TPU" in n]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(tpu_metadata, "ADDRESS", "http://127.0.0.1:9/")
    monkeypatch.setattr(glob, "glob", lambda pattern: [])
    with monkeypatch.context():
        yield


@pytest.fixture
def pod(monkeypatch):
    """Host 1 of a v4-16."""
    answers = {"tpu-env": V4_16, "worker-network-endpoints": ENDPOINTS}
    monkeypatch.setattr(tpu_metadata, "attribute", lambda key, limit_s: answers[key])


def pci(folder, devices):
    """Files of a PCI bus as the kernel shows it."""
    for number, (vendor, device) in enumerate(devices):
        slot = folder / str(number)
        slot.mkdir()
        (slot / "vendor").write_text(f"{vendor}\n")
        (slot / "device").write_text(f"{device}\n")
    return [str(path) for path in sorted(folder.glob("*/vendor"))]


def test_without_a_tpu_there_is_the_device_that_is_there(monkeypatch):
    assert (tpu_facts.num_available_chips(), tpu_facts.num_local_processes()) == (0, 0)
    assert (tpu_facts.version(), tpu_facts.get_tpu_type()) == (0, "")
    monkeypatch.setattr(settings, "cpu_num_devices", lambda: 3)
    assert tpu_facts.num_available_devices() == 3


def test_chips_are_counted_on_the_bus(monkeypatch, tmp_path):
    found = pci(tmp_path, [("0x1ae0", "0x005e"), ("0x8086", "0x005e"), ("0x1ae0", "0x0001")])
    monkeypatch.setattr(glob, "glob", lambda pattern: found)
    assert tpu_facts.num_available_chips() == 1
    for name, devices in {"v3-8": 2, "v4-8": 1}.items():
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", name)
        assert tpu_facts.num_available_devices() == devices


def test_a_tpu_whose_slice_nobody_names_is_an_error_that_says_what_to_set(monkeypatch, tmp_path):
    found = pci(tmp_path, [("0x1ae0", "0x005e")])
    monkeypatch.setattr(glob, "glob", lambda pattern: found)
    with pytest.raises(OSError, match=r"Failed to get TPU metadata: .* set TPU_SKIP_MDS_QUERY=1"):
        tpu_facts.version()


def test_a_name_that_is_no_tpus_is_refused(monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "teapot")
    with pytest.raises(OSError, match="Failed to parse TPU version from metadata: 'teapot'; exp"):
        tpu_facts.version()


@pytest.mark.parametrize(
    ("name", "version", "kind"),
    [
        ("v2-8", 2, "v2"),
        ("v5litepod-16", 5, "v5litepod"),
        ("v6e-8", 6, "v6e"),
        ("tpu7x-8", 7, "tpu7x"),
    ],
)
def test_the_name_of_the_slice_tells_the_generation(monkeypatch, name, version, kind):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", name)
    assert (tpu_facts.version(), tpu_facts.get_tpu_type()) == (version, kind)


def test_the_metadata_server_names_the_slice_and_its_hosts(pod):
    assert tpu_facts.get_tpu_env()["TPU_PROCESS_BOUNDS"] == "1,1,2"
    assert (tpu_facts.version(), tpu_facts.worker_id(), tpu_facts.num_tpu_workers()) == (4, 1, 2)
    assert tpu_facts.get_worker_ips() == ["10.0.0.2", "10.0.0.3"]
    assert tpu_facts.num_expected_global_devices() == 2 * tpu_facts.num_available_devices()


def test_variables_name_the_slice_where_the_server_is_not_to_be_asked(monkeypatch):
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v4-16",
        "TPU_HOST_BOUNDS": "1,1,2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,1,1",
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "one,two",
    }.items():
        monkeypatch.setenv(name, value)
    assert tpu_facts.get_tpu_env() == {
        "ACCELERATOR_TYPE": "v4-16",
        "TPU_PROCESS_BOUNDS": "1,1,2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "WORKER_ID": "1",
    }
    assert tpu_facts.get_worker_ips() == ["one", "two"]
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "one")
    assert tpu_facts.get_worker_ips() == ["localhost"] == [tpu_facts.discover_master_worker_ip()]


def test_the_host_of_rank_0_is_the_one_the_launcher_names(pod, monkeypatch):
    monkeypatch.setattr(tpu_facts, "get_master_ip", lambda: "10.0.0.2")
    assert tpu_facts.discover_master_worker_ip() == "10.0.0.2"


def test_each_process_gets_one_chip_of_the_slice(pod, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ, TPU_PROCESS_PORT="9"))
    tpu_facts.configure_topology(3, 4)
    found = {name: value for name, value in os.environ.items() if "TPU" in name}
    ports = [8476, 8477, 8478, 8479]
    assert found == {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "2,2,2",
        "CLOUD_TPU_TASK_ID": "7",
        "TPU_PROCESS_ADDRESSES": ",".join(
            f"{host}:{port}" for host in ("10.0.0.2", "10.0.0.3") for port in ports
        ),
        "TPU_VISIBLE_CHIPS": "3",
        "TPU_PROCESS_PORT": "9",
    }


@pytest.mark.parametrize(
    ("name", "grid"), [("v3-8", "2,2,1"), ("v3-32", "4,4,1"), ("v2-256", "8,16,1")]
)
def test_old_slices_lie_in_a_square_or_two(monkeypatch, name, grid):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", name)
    env = {"ACCELERATOR_TYPE": name, "WORKER_ID": "0"}
    monkeypatch.setattr(tpu_facts, "get_tpu_env", lambda: env)
    monkeypatch.setattr(tpu_facts, "get_worker_ips", lambda: ["localhost"])
    tpu_facts.configure_topology(0, 4)
    assert os.environ["TPU_PROCESS_BOUNDS"] == grid


def test_the_seventh_generation_counts_two_cores(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ, TPU_ACCELERATOR_TYPE="tpu7x-8"))
    env = {
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "WORKER_ID": "0",
    }
    monkeypatch.setattr(tpu_facts, "get_tpu_env", lambda: env)
    monkeypatch.setattr(tpu_facts, "get_worker_ips", lambda: ["localhost"])
    tpu_facts.configure_topology(0, 4)
    assert os.environ["TPU_PROCESS_BOUNDS"] == "2,2,1,2"


def test_one_process_takes_the_first_chip(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(tpu_facts, "device_type", lambda: "TPU")
    monkeypatch.setattr(settings, "reread", lambda: None)
    monkeypatch.setattr(world, "forget", lambda: None)
    tpu_facts.initialize_singleprocess()
    assert (os.environ["TPU_VISIBLE_CHIPS"], os.environ["WORLD_SIZE"]) == ("0", "1")


def test_processes_are_not_more_than_are_named(monkeypatch):
    monkeypatch.setattr(tpu_facts, "num_available_chips", lambda: 4)
    assert (tpu_facts.process_bounds_size(), tpu_facts.num_local_processes()) == (None, 4)
    monkeypatch.setenv("TPU_PROCESS_BOUNDS", "1,2,1")
    assert (tpu_facts.process_bounds_size(), tpu_facts.num_local_processes()) == (2, 2)
    assert tpu_facts.task_id() is None
    monkeypatch.setenv("CLOUD_TPU_TASK_ID", "5")
    assert tpu_facts.task_id() == 5


def test_variables_name_the_slice_by_their_newer_names_first(monkeypatch):
    assert set(tpu_facts.build_tpu_env_from_vars().values()) == {None}
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v4-16")
    monkeypatch.setenv("TPU_HOST_BOUNDS", "1,1,1")
    monkeypatch.setenv("TPU_CHIPS_PER_HOST_BOUNDS", "2,2,1")
    monkeypatch.setenv("TPU_WORKER_ID", "3")
    old = tpu_facts.build_tpu_env_from_vars()
    assert old["TPU_PROCESS_BOUNDS"] == "1,1,1" and old["WORKER_ID"] == "3"
    monkeypatch.setenv("TPU_PROCESS_BOUNDS", "1,1,2")
    monkeypatch.setenv("TPU_CHIPS_PER_PROCESS_BOUNDS", "1,2,1")
    monkeypatch.setenv("CLOUD_TPU_TASK_ID", "1")
    assert tpu_facts.build_tpu_env_from_vars() == {
        "ACCELERATOR_TYPE": "v4-16",
        "TPU_PROCESS_BOUNDS": "1,1,2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,2,1",
        "WORKER_ID": "1",
    }
    assert tpu_facts.TpuEnv(**old) == old


@pytest.mark.parametrize(("name", "cores"), [("v2-8", 2), ("v3-8", 2), ("v4-8", 1), ("v6e-4", 1)])
def test_a_chip_of_an_old_generation_shows_two_devices(monkeypatch, name, cores):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", name)
    assert tpu_facts.num_logical_cores_per_chip() == cores


def test_a_topology_of_one_chip_keeps_what_is_set(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "TPU_VISIBLE_CHIPS": "2"})
    tpu_facts.configure_one_chip_topology()
    assert os.environ["TPU_VISIBLE_CHIPS"] == "2"
    assert os.environ["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
    assert os.environ["TPU_PROCESS_BOUNDS"] == "1,1,1"


def test_grids_multiply():
    grid = MeshShape.from_string("1,1,2") * MeshShape(2, 2, 1)
    assert (grid, grid.size) == ((2, 2, 2), 8)
    with pytest.raises(ValueError, match="Mesh shape '2,2' should be length 3"):
        MeshShape.from_string("2,2")


def test_the_tpu_is_a_plugin(pod, monkeypatch):
    plugin = tpu_facts.TpuPlugin()
    with pytest.raises(OSError, match=r"libtpu not found: set TPU_LIBRARY_PATH to its libtpu\.so"):
        plugin.library_path()
    monkeypatch.setenv("TPU_LIBRARY_PATH", "somewhere")
    assert plugin.library_path() == "somewhere"
    assert (plugin.host_index(), plugin.physical_chip_count()) == (1, 0)
    assert plugin.client_create_options()["max_inflight_computations"] == 32
    monkeypatch.setattr(os, "environ", dict(os.environ))
    plugin.configure_single_process()
    assert os.environ["TPU_VISIBLE_CHIPS"] == "0"
    plugin.configure_multiprocess(1, 4)
    assert os.environ["CLOUD_TPU_TASK_ID"] == "5"


def test_tests_of_other_libraries_replace_functions_of_the_face(monkeypatch):
    face = importlib.import_module("torch_xla._internal.tpu")
    monkeypatch.setattr(face, "num_available_chips", lambda: 4)
    monkeypatch.setattr(face, "version", lambda: 3)
    assert face.num_available_devices() == 8

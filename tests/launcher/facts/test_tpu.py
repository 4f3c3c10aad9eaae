"""TPU topology: golden values for hosts, pods and sub-slices, from public metadata layouts."""

import http.server
import threading
from math import prod

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from torch_xdist.launcher.facts import devices, tpu
from torch_xdist.launcher.facts.errors import DevicesError, UsageError
from torch_xdist.launcher.ways_in import spawn as spawn_module
from torch_xdist.launcher.ways_in.cli import cli
from torch_xdist.launcher.ways_in.spawn import spawn
from torch_xdist.system import tpu_metadata

# type: (chips of one host, hosts along each axis, devices a chip shows)
GOLDEN = {
    "v2-8": ("2,2,1", "1,1,1"),
    "v2-32": ("2,2,1", "2,2,1"),
    "v2-128": ("2,2,1", "4,4,1"),
    "v2-256": ("2,2,1", "4,8,1"),
    "v2-512": ("2,2,1", "8,8,1"),
    "v3-8": ("2,2,1", "1,1,1"),
    "v3-32": ("2,2,1", "2,2,1"),
    "v3-64": ("2,2,1", "2,4,1"),
    "v3-1024": ("2,2,1", "8,16,1"),
    "v3-2048": ("2,2,1", "16,16,1"),
    "v4-8": ("2,2,1", "1,1,1"),
    "v4-16": ("2,2,1", "1,1,2"),
    "v4-32": ("2,2,1", "1,1,4"),
    "v4-64": ("2,2,1", "1,2,4"),
    "v4-128": ("2,2,1", "2,2,4"),
    "v4-256": ("2,2,1", "2,2,8"),
    "v5p-8": ("2,2,1", "1,1,1"),
    "v5p-128": ("2,2,1", "2,2,4"),
    "v5litepod-1": ("1,1,1", "1,1,1"),
    "v5litepod-4": ("2,2,1", "1,1,1"),
    "v5litepod-8": ("2,4,1", "1,1,1"),
    "v5litepod-16": ("2,2,1", "2,2,1"),
    "v5litepod-64": ("2,2,1", "4,4,1"),
    "v6e-1": ("1,1,1", "1,1,1"),
    "v6e-8": ("2,4,1", "1,1,1"),
    "v6e-32": ("2,2,1", "2,4,1"),
    "v6e-256": ("2,2,1", "8,8,1"),
}

TPU_ENV = """\
ACCELERATOR_TYPE: 'v4-16'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
HOST_BOUNDS: '1,1,2'
NODE_ID: 'pod-1'
TPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'
TPU_PROCESS_BOUNDS: '1,1,2'
TYPE: 'V4'
WORKER_ID: '1'
"""
ENDPOINTS = "w-0:uid0:10.1.0.2,w-1:uid1:10.1.0.3"


def named(accelerator_type):
    hosts = prod(tpu.parse_grid(GOLDEN[accelerator_type][1]))
    return tpu.slice_of(accelerator_type, 0, [f"h{index}" for index in range(hosts)])


@pytest.mark.parametrize("accelerator_type", GOLDEN)
def test_every_known_slice_has_its_grids(accelerator_type):
    whole = named(accelerator_type)
    grids = (tpu.show_grid(whole.host_grid), tpu.show_grid(whole.hosts_grid))
    assert grids == GOLDEN[accelerator_type]


@pytest.mark.parametrize("accelerator_type", GOLDEN)
def test_one_rank_per_chip_covers_the_slice_and_every_rank_has_a_task_of_its_own(accelerator_type):
    first = named(accelerator_type)
    tasks, addresses = [], set()
    for worker in range(prod(first.hosts_grid)):
        whole = tpu.slice_of(accelerator_type, worker, first.addresses)
        for local_rank in range(whole.chips_per_host):
            names = tpu.rank_variables(whole, local_rank, whole.chips_per_host)
            tasks.append(int(names["CLOUD_TPU_TASK_ID"]))
            addresses.add(names["TPU_PROCESS_ADDRESSES"])
            chips = prod(tpu.parse_grid(names["TPU_PROCESS_BOUNDS"]))
    assert tasks == list(range(chips))
    assert len(addresses) == 1
    assert len(addresses.pop().split(",")) == chips


def test_a_single_host_gives_each_rank_a_chip():
    assert tpu.rank_variables(tpu.slice_of("v4-8"), 3, 4) == {
        "TPU_VISIBLE_CHIPS": "3",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_ADDRESSES": "localhost:8476,localhost:8477,localhost:8478,localhost:8479",
        "TPU_PROCESS_PORT": "8479",
        "CLOUD_TPU_TASK_ID": "3",
    }


def test_a_pod_names_the_processes_of_all_hosts():
    whole = tpu.slice_of("v5litepod-16", 2, ["a", "b", "c", "d"])
    names = tpu.rank_variables(whole, 1, 4, base_port=9000)
    assert names["TPU_PROCESS_BOUNDS"] == "4,4,1"
    assert names["CLOUD_TPU_TASK_ID"] == "9"
    assert names["TPU_PROCESS_PORT"] == "9001"
    assert names["TPU_PROCESS_ADDRESSES"].split(",")[4:9] == [
        "b:9000",
        "b:9001",
        "b:9002",
        "b:9003",
        "c:9000",
    ]


@pytest.mark.parametrize(("ranks", "grid"), [(1, "1,1,1"), (2, "1,2,1"), (4, "2,2,1")])
def test_a_sub_slice_of_one_host_stands_alone(ranks, grid):
    names = tpu.rank_variables(tpu.slice_of("v6e-8"), 0, ranks)
    assert names["TPU_PROCESS_BOUNDS"] == grid
    assert names["TPU_PROCESS_ADDRESSES"].count("localhost") == ranks


def test_fewer_ranks_than_chips_on_a_pod_do_not_join_its_hosts():
    names = tpu.rank_variables(tpu.slice_of("v4-16", 1, ["a", "b"]), 1, 2)
    assert names["TPU_PROCESS_ADDRESSES"] == "localhost:8476,localhost:8477"
    assert names["CLOUD_TPU_TASK_ID"] == "1"


def test_more_ranks_than_chips_are_one_sentence():
    with pytest.raises(DevicesError, match="5 ranks asked for, but this host has 4 TPU chips; use"):
        tpu.rank_variables(tpu.slice_of("v4-8"), 0, 5)


def test_ranks_that_make_no_sub_slice_are_refused_with_what_fits():
    with pytest.raises(DevicesError, match=r"3 ranks make no sub-slice .* use 1, 2, 4, 8"):
        tpu.rank_variables(tpu.slice_of("v6e-8"), 0, 3)


@pytest.mark.parametrize("name", ["v9-8", "v4", "v4-7", "tpu", "v4-13"])
def test_an_unknown_slice_is_refused(name):
    with pytest.raises(DevicesError, match=f"TPU type '{name}' is unknown; known are v2-N, v3-N"):
        tpu.slice_of(name)


def test_hosts_and_addresses_must_match():
    with pytest.raises(DevicesError, match="TPU slice v4-16: 2 hosts, but 0 addresses"):
        tpu.slice_of("v4-16", 0)
    with pytest.raises(DevicesError, match="worker 2 of 2 hosts; TPU_WORKER_ID must be 0 to 1"):
        tpu.slice_of("v4-16", 2, ["a", "b"])


@pytest.mark.parametrize("bounds", ["2,2,1,1", "2,a,1", "0,1,1", ""])
def test_bounds_that_are_no_grid_are_refused(bounds):
    with pytest.raises(DevicesError, match=r"TPU bounds .*: three positive sizes"):
        tpu.parse_grid(bounds)


def test_the_topology_attribute_is_a_grid_too():
    assert tpu.parse_grid("'4x4'") == (4, 4, 1)


def test_metadata_of_a_pod_is_read():
    whole = tpu.slice_from_metadata(TPU_ENV, ENDPOINTS)
    assert whole == tpu.Slice("v4-16", (2, 2, 1), (1, 1, 2), 1, ("10.1.0.2", "10.1.0.3"))


def test_given_bounds_win_over_the_type():
    whole = tpu.slice_of("v4-twisted", 0, ["a", "b"], "1,2,1", "2,2,1")
    assert whole.hosts_grid == (1, 2, 1)


def test_metadata_without_a_type_is_refused():
    with pytest.raises(DevicesError, match="TPU metadata: no ACCELERATOR_TYPE among NODE_ID; set"):
        tpu.slice_from_metadata("NODE_ID: 'x'\n", "")


def test_variables_name_the_slice_too():
    environ = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_WORKER_ID": "3",
        "TPU_WORKER_HOSTNAMES": "a, b,c,d",
    }
    whole = tpu.read_slice(environ)
    assert (whole.worker_id, whole.addresses) == (3, ("a", "b", "c", "d"))
    assert tpu.slice_from_environ({}) is None


def test_variables_that_forbid_the_metadata_must_say_the_type():
    with pytest.raises(DevicesError, match="TPU_SKIP_MDS_QUERY is set, but TPU_ACCELERATOR_TYPE"):
        tpu.read_slice({"TPU_SKIP_MDS_QUERY": "1"})


class Metadata(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.headers["Metadata-Flavor"] == "Google"
        body = (TPU_ENV if self.path.endswith("tpu-env") else ENDPOINTS).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata(monkeypatch):
    """The metadata server of host 1 of a v4-16."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setattr(tpu_metadata, "ADDRESS", f"http://127.0.0.1:{server.server_port}/")
        yield
        server.shutdown()


def test_the_metadata_server_is_asked_without_a_proxy(metadata, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert tpu.read_slice({}).accelerator_type == "v4-16"


def on_a_pod(monkeypatch):
    """This host has four chips, and no variable says that there are other hosts."""
    found = devices.Found({"TPU": 4, "CUDA": 0}, {"TPU": True, "CUDA": False})
    monkeypatch.setattr(devices, "probe", lambda: found)
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    # jax sets it where it sees no chips.
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)


@pytest.mark.parametrize("ranks", ["4", "auto"])
def test_all_chips_of_one_host_of_a_pod_are_no_job(metadata, monkeypatch, ranks):
    on_a_pod(monkeypatch)
    found = CliRunner().invoke(cli, ["--dry-run", "-n", ranks, "true"])
    words = (
        "this is host 1 of 2 of TPU slice v4-16: its ranks are joined by `xla-run --tpu NAME`, or"
    )
    with pytest.raises(UsageError, match=words):
        raise found.exception


@pytest.mark.parametrize("ranks", [4, None])
def test_spawn_starts_all_chips_of_one_host_of_a_pod_as_its_part(metadata, monkeypatch, ranks):
    on_a_pod(monkeypatch)
    made = []
    monkeypatch.setattr(spawn_module, "Handle", lambda spec, blob: made.append(spec))
    with pytest.raises(AttributeError):  # there is nothing to join
        spawn(print, nprocs=ranks)
    assert made[0].part.host_index == 1 and made[0].ranks() == range(4, 8)
    assert made[0].headline.startswith("8 ranks on 2 hosts, TPU (ICI); this is host ")


def test_some_chips_of_one_host_of_a_pod_make_a_sub_slice(metadata, monkeypatch):
    on_a_pod(monkeypatch)
    found = CliRunner().invoke(cli, ["--dry-run", "-n", "2", "true"])
    assert found.exit_code == 0, found.output
    assert "TPU_PROCESS_ADDRESSES=localhost:8476,localhost:8477" in found.output


def test_a_metadata_server_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(tpu_metadata, "ADDRESS", "http://127.0.0.1:9/")
    with pytest.raises(DevicesError, match=r"the server did not answer .*; set TPU_ACCELERATOR"):
        tpu.read_slice({})


@given(st.text(max_size=80), st.text(max_size=80))
def test_metadata_of_any_text_is_a_slice_or_one_clear_error(tpu_env, endpoints):
    for text in (tpu_env, TPU_ENV + tpu_env):
        try:
            assert tpu.slice_from_metadata(text, endpoints).chips_per_host >= 1
        except DevicesError as error:
            assert "TPU" in str(error)

"""Profiles: servers, sessions, blocks, and what torch_xla's private names make."""

import threading
import time

import grpc
import jax
import pytest
import torch

import torch_xla
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
from torch_xdist import metrics, world
from torch_xdist.core.trace import notes
from torch_xdist.debug import remote_profile
from torch_xla.utils.utils import get_free_tcp_ports

profiler = torch_xla._XLAC.profiler


@pytest.fixture(scope="module")
def port():
    (found,) = get_free_tcp_ports(1)
    server = xp.start_server(found)
    yield found
    assert server is not None
    del server


def stepping(until, steps=10_000):
    while steps and not until.wait(0.01):
        steps -= 1
        with xp.StepTrace("train", step_num=1), xp.Trace("build_graph"):
            x = torch.ones(3, 3).to("xla") + 1
        assert x.shape == (3, 3)


def test_a_server_hands_out_what_happens(port, tmp_path):
    stepping(threading.Event(), steps=1)
    done = threading.Event()
    work = threading.Thread(target=stepping, args=(done,))
    work.start()
    try:
        asked = xp.trace_detached(f"localhost:{port}", str(tmp_path), duration_ms=300)
        asked.join(60)
    finally:
        done.set()
        work.join()
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    found = file.read_bytes()
    for name in ("train", "build_graph", "TransferToDevice", "ExecuteComputation"):
        assert name.encode() in found


def test_where_no_server_is_trace_says_so(tmp_path):
    (port,) = get_free_tcp_ports(1)
    with pytest.raises(RuntimeError, match=f"no profiler's server answers at localhost:{port}; "):
        xp.trace(f"localhost:{port}", str(tmp_path), timeout_s=0, interval_s=1)
    with pytest.raises(RuntimeError, match="service_addr=',' names no server; give host:port"):
        xp.trace(",", str(tmp_path))


def test_a_profile_in_which_nothing_happens_is_asked_for_again(monkeypatch, tmp_path):
    asked = []

    def nothing(addresses, requests, *rest):
        asked.append(requests)
        return [b"\x38\x01"]

    monkeypatch.setattr(remote_profile, "_ask", nothing)
    with pytest.raises(RuntimeError, match="nothing happened at a:1 in 2 times 5 ms; profile"):
        xp.trace("a:1", str(tmp_path), duration_ms=5, num_tracing_attempts=2)
    assert len(asked) == 2


def test_a_server_that_refuses_is_named(port, monkeypatch, tmp_path):
    monkeypatch.setattr(remote_profile, "_METHOD", "/tensorflow.ProfilerService/Nothing")
    words = f"server at localhost:{port} failed: UNIMPLEMENTED: .*; another profile may be running"
    with pytest.raises(RuntimeError, match=words) as error:
        xp.trace(f"localhost:{port}", str(tmp_path), duration_ms=1)
    assert isinstance(error.value.__cause__, grpc.RpcError)


def test_a_request_is_written_as_protobuf_does():
    found = remote_profile.request("root", "run", "a:1", 300, {"host_tracer_level": 2})
    assert found == (
        b"\x08\xac\x02\x10\xc0\x84\x3d\x1a\x0ctrace_viewer"
        b"\x22\x0d\x28\x01\x38\x01\x48\xac\x02\x10\x02\x18\x00\x20\x00"
        b"\x2a\x04root\x32\x03run\x3a\x03a_1"
    )


def test_only_the_first_rank_of_a_host_has_a_server(monkeypatch):
    other = type("Rank", (), {"local_rank": 1})
    monkeypatch.setattr(world, "current", lambda: other)
    assert xp.start_server(1) is None


def test_the_end_of_a_server_waits_for_the_profile(monkeypatch):
    server = object.__new__(profiler.ProfilerServer)
    until = time.monotonic() + 0.1
    running = staticmethod(lambda: time.monotonic() < until)
    monkeypatch.setattr(profiler, "TraceMe", type("TraceMe", (), {"is_enabled": running}))
    monkeypatch.setattr(profiler, "_WRITING_S", 0)
    server.__del__()
    assert time.monotonic() >= until
    server.__del__()


def test_a_session_gives_and_writes_a_profile(tmp_path):
    session = profiler.TslProfilerSessionWrapper()
    with profiler.TraceMe("my_block", number=3) as block:
        block.set_metadata(more=4)
        assert profiler.TraceMe.is_enabled()
    found = session.stop()
    assert b"my_block" in found
    session.export(found, str(tmp_path))
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    # As XProf and TensorBoard read it.
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    (block,) = [event for event in events if event.name == "my_block"]
    assert dict(block.stats) == {"number": 3, "more": 4} and block.duration_ns > 0
    assert not profiler.TraceMe.is_enabled()


def test_the_private_server_and_trace_are_the_same(monkeypatch):
    calls = []
    monkeypatch.setattr(remote_profile, "collect", lambda *args: calls.append(args))
    profiler.trace("a:1", "folder", options={"delay_ms": 3})
    assert calls == [("a:1", "folder", 1000, 3, 120, 5, {"delay_ms": 3})]
    (port,) = get_free_tcp_ports(1)
    assert isinstance(profiler.start_server(port), profiler.ProfilerServer)


def test_a_scope_ends_with_its_object():
    scope = profiler.scope_pusher("block")
    assert notes.current_scope().startswith("block.")
    del scope
    assert notes.current_scope() == ""


def test_a_step_trace_takes_the_place_of_the_loaders_step():
    batches = [torch.ones(2)] * 3
    xp.set_tracer_marked_step(False)
    before = metrics.counter_value("MarkStep") or 0
    for batch in pl.MpDeviceLoader(batches, torch_xla.device()):
        with xp.StepTrace("train"):
            batch + 1
        assert xp.get_tracer_marked_step()
    # The loader's own before the first batch and at the end, and one for each batch.
    assert (metrics.counter_value("MarkStep") or 0) == before + 5
    xp.set_tracer_marked_step(False)
    assert not xp.get_tracer_marked_step()

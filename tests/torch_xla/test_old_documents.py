"""The snippets of torch_xla's documents of every age, on one device of this process."""

import os

import pytest
import torch
import torch.nn.functional as F
from small_model import Net, losses_on_cpu, make_batches
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
import torch_xla.utils.serialization as xser
import torch_xla.utils.utils as xu
import torch_xla_py.xla_model as xm_2019
from torch_xdist import settings
from torch_xdist.core.run import cuts
from torch_xdist.training import eager


@pytest.fixture
def batches():
    return make_batches()


@pytest.fixture
def asked_again():
    """The settings are read once more, now and after the test."""
    settings.current.cache_clear()
    yield
    settings.current.cache_clear()


@pytest.fixture
def trained(batches):
    """A model and an SGD optimizer on the device, made as the CPU's are."""
    torch.manual_seed(0)
    model = Net().to(xm.xla_device())
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_tensors_are_made_added_and_multiplied():
    t0 = torch.randn(2, 2, device=xm.xla_device())
    t1 = torch.randn(2, 2, device=xm.xla_device())
    assert t0.device == torch.device("xla:0") and t0.device.type == "xla"
    torch.testing.assert_close((t0 + t1).cpu(), t0.cpu() + t1.cpu())
    torch.testing.assert_close(t0.mm(t1).cpu(), t0.cpu().mm(t1.cpu()))


def test_a_tensor_prints_its_device():
    t = torch.tensor(100, device="xla") + torch.tensor(200, device="xla")
    assert str(t) == "tensor(300, device='xla:0')"


def test_a_layer_runs_on_the_device():
    layer = nn.Linear(10, 20).to(xm.xla_device())
    assert layer(torch.randn(4, 10, device="xla")).shape == (4, 20)


def test_a_layer_on_the_cpu_refuses_a_tensor_of_the_device():
    with pytest.raises(RuntimeError, match=r"Input tensor is not an XLA tensor: torch\.Float"):
        nn.Linear(10, 20)(torch.randn(4, 10, device=xm.xla_device()))


def test_one_device_trains_with_a_barrier(trained, batches):
    model, optimizer = trained
    losses = []
    for data, target in batches:
        data, target = data.to(xm.xla_device()), target.to(xm.xla_device())
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        losses.append(loss.item())
    assert losses == pytest.approx(losses_on_cpu(batches), rel=1e-4)


def test_the_optimizer_steps_itself_and_the_step_is_marked(trained, batches):
    model, optimizer = trained
    losses = []
    for data, target in batches:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data.to("xla")), target.to("xla"))
        loss.backward()
        optimizer.step()
        xm.mark_step()
        losses.append(loss)
    assert [x.item() for x in losses] == pytest.approx(losses_on_cpu(batches), rel=1e-4)


def test_a_parallel_loader_feeds_the_device(trained, batches):
    model, optimizer = trained
    losses = []
    loader = pl.ParallelLoader(batches, [xm.xla_device()])
    for data, target in loader.per_device_loader(xm.xla_device()):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)
        xm.add_step_closure(lambda value: losses.append(value.item()), args=(loss,))
    assert losses == pytest.approx(losses_on_cpu(batches), rel=1e-4)


def test_the_device_loader_makes_one_cut_and_no_new_program_per_step(trained, batches):
    model, optimizer = trained
    reasons_before, programs = cuts.REASONS.copy(), []
    for data, target in pl.MpDeviceLoader(batches, xm.xla_device()):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)
        programs.append(xr.get_num_cached_compilation_graph())
    assert (cuts.REASONS - reasons_before).keys() <= {cuts.SYNC}
    assert len(set(programs[3:])) == 1


def test_torch_xla_step_and_sync_end_a_step(trained, batches):
    model, optimizer = trained
    for data, target in batches:
        with torch_xla.step():
            optimizer.zero_grad()
            loss = F.nll_loss(model(data.to("xla")), target.to("xla"))
            loss.backward()
            optimizer.step()
    torch_xla.sync()
    assert loss.item() == pytest.approx(losses_on_cpu(batches)[-1], rel=1e-4)


def test_compile_runs_a_function_as_one_program():
    @torch_xla.compile(full_graph=True)
    def double(x):
        return x * 2

    x = torch.ones(3, device="xla")
    before = cuts.REASONS.copy()
    result = double(x)
    assert (cuts.REASONS - before).total() <= 2
    assert result.tolist() == [2, 2, 2]


def test_compile_refuses_a_value_read_inside():
    @torch_xla.compile(full_graph=True)
    def reads(x):
        return x * (x.sum().item() + 1)

    with pytest.raises(RuntimeError, match="Unexpected execution happens inside the compiled"):
        reads(torch.ones(3, device="xla"))


def test_compile_limits_the_number_of_programs():
    @torch_xla.compile(max_different_graphs=1)
    def double(x):
        return x * 2

    double(torch.ones(3, device="xla"))
    with pytest.raises(RuntimeError, match="Maximum number of different graphs allowed per func"):
        double(torch.ones(4, device="xla"))


def test_compile_options_per_function_are_refused():
    with pytest.raises(ValueError, match=r"custom_compile_options .* cannot be set per function"):
        torch_xla.compile(lambda: None, custom_compile_options={"xla_x": 1})


def test_compile_without_a_function_is_a_block():
    with torch_xla.compile() as block:
        result = torch.ones(2, device="xla") + 1
    assert result.tolist() == [2, 2]
    with pytest.raises(TypeError, match="holds no function; use it as a `with` block"):
        block()


def test_xm_save_writes_what_any_torch_loads(trained, tmp_path):
    model, _ = trained
    xm.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {str(t.device) for t in state.values()} == {"cpu"}
    Net().load_state_dict(state)


def test_a_model_moves_to_the_cpu_is_saved_and_comes_back(trained, tmp_path):
    model, _ = trained
    torch.save(model.cpu().state_dict(), tmp_path / "model.pt")
    other = Net()
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert torch.equal(other.to("xla").out.weight.cpu(), model.out.weight)


def test_tensors_saved_from_the_device_load_anywhere(tmp_path):
    # torch_xla's files load onto its device, and only where it is installed; ours load anywhere.
    torch.save(torch.ones(3, device="xla"), tmp_path / "t.pt")
    loaded = torch.load(tmp_path / "t.pt", weights_only=True)
    assert loaded.device.type == "cpu" and loaded.tolist() == [1, 1, 1]


@pytest.mark.parametrize("location", ["xla", "xla:0", torch.device("xla", 0)])
def test_files_are_loaded_onto_the_device_on_request(tmp_path, location):
    weight = torch.nn.Parameter(torch.ones(3))
    torch.save({"a": weight, "tied": weight, "n": (1, torch.zeros(2))}, tmp_path / "t.pt")
    state = torch.load(tmp_path / "t.pt", map_location=location)
    assert state["a"] is state["tied"] and isinstance(state["a"], torch.nn.Parameter)
    assert state["a"].device.type == state["n"][1].device.type == "xla"


def test_xser_saves_and_loads(trained, tmp_path):
    model, _ = trained
    xser.save(model.state_dict(), str(tmp_path / "model"))
    state = xser.load(str(tmp_path / "model"))
    torch.testing.assert_close(state["out.weight"], model.out.weight.detach().cpu())


def test_clipping_gradients_makes_no_cut(trained, batches):
    model, _ = trained
    data, target = next(iter(batches))
    xm.mark_step()
    F.nll_loss(model(data.to("xla")), target.to("xla")).backward()
    before = cuts.REASONS.total()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    assert cuts.REASONS.total() == before
    clipped = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert norm.item() > 0.01 and clipped.item() == pytest.approx(0.01, rel=1e-3)


def test_the_metrics_report_shows_what_happened(trained, batches):
    met.clear_all()
    model, _ = trained
    for _ in range(2):
        for data, _ in batches:
            model(data.to(xm.xla_device())).sum().item()
            xm.mark_step()
    torch.ones(5, device="xla").nonzero()
    report = met.metrics_report()
    for name in ("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime"):
        assert f"Metric: {name}\n  TotalSamples: " in report
    for name in ("CachedCompile", "UncachedCompile", "MarkStep"):
        assert f"Counter: {name}\n  Value: " in report
    assert met.counter_value("MarkStep") == 12
    assert torch_xla._XLAC._xla_metrics_report() == met.metrics_report()


def test_an_operator_without_a_row_is_counted_as_aten():
    met.clear_all()
    torch.ones(5, device="xla").nonzero()
    assert met.executed_fallback_ops() == ["aten::nonzero"]
    assert "Counter: aten::nonzero\n  Value: 1\n" in met.metrics_report()


def test_ranks_of_a_world_of_one():
    assert (xm.get_ordinal(), xm.get_local_ordinal(), xm.xrt_world_size()) == (0, 0, 1)
    assert (xm.get_ordinal(-1), xm.xrt_world_size(7)) == (-1, 7)
    assert xm.is_master_ordinal() and xm.is_master_ordinal(local=False)
    assert (xr.world_size(), xr.global_ordinal(), xr.process_count()) == (1, 0, 1)


def test_master_print_prints(capsys):
    xm.master_print("a", 1)
    assert capsys.readouterr().out == "a 1\n"


def test_one_rank_meets_itself():
    assert xm.rendezvous("tag") == [b""]
    assert xm.rendezvous("", b"payload") == [b"payload"]
    assert xm.mesh_reduce("sum", torch.ones(2, device="xla"), sum).tolist() == [1, 1]
    assert xm.xla_rendezvous(b"x") == [b"x"]
    assert xm.do_on_ordinals(lambda t: t.device.type, (torch.ones(1, device="xla"),)) == "cpu"


def test_wrong_rendezvous_arguments_are_named():
    with pytest.raises(TypeError, match="must be bytes, not str"):
        xm.xla_rendezvous("x")
    with pytest.raises(ValueError, match="Only global rendezvous is supported"):
        xm.xla_rendezvous(b"x", ordinals=[0, 1])


def test_devices_have_old_and_new_names():
    assert torch_xla.device() == xm.xla_device() == xm_2019.xla_device(0)
    assert xm.get_xla_supported_devices() == ["xla:0"]
    assert xm.get_xla_supported_devices("CPU") == xm.get_xla_supported_devices(["TPU", "CPU"])
    assert xm.get_xla_supported_devices(max_devices=1) == xm.get_xla_supported_devices(1)
    assert xm.get_xla_supported_devices("TPU") is None
    assert xm.xla_real_devices(["xla:0"]) == torch_xla.real_devices() == ["CPU:0"]
    assert xm.xla_device_hw("xla:0") == "CPU" and xm.xla_device_kind() == "cpu"
    assert xm.parse_xla_device("TPU:3") == ("TPU", 3) and xm.parse_xla_device("xla:0") is None
    assert xm.xla_replication_devices() == ["CPU:0"]
    assert torch_xla.device_count() == len(torch_xla.devices()) == 1


def test_wrong_devices_are_named():
    with pytest.raises(RuntimeError, match="No devices of TPU kind; this process has CPU devices"):
        xm.xla_device(devkind="TPU")
    with pytest.raises(RuntimeError, match="Cannot replicate if number of devices"):
        xm.xla_replication_devices([])
    for error in (RuntimeError, IndexError):
        with pytest.raises(error, match="xla:9"):
            xm.xla_device(9)


def test_memory_is_told_in_both_units():
    info = xm.get_memory_info(xm.xla_device())
    assert 0 < info["bytes_used"] <= info["peak_bytes_used"] <= info["bytes_limit"]
    assert info["kb_total"] == info["bytes_limit"] // 1024 and info["kb_free"] > 0


def test_random_states_are_set_read_and_forked():
    xm.set_rng_state(11)
    state = xm.get_rng_state()
    first = torch.rand(3, device="xla").tolist()
    with xm.fork_rng():
        torch.rand(3, device="xla")
        forked = xm.get_rng_state()
    assert isinstance(state, int) and forked != xm.get_rng_state()
    torch_xla.manual_seed(11)
    assert torch.rand(3, device="xla").tolist() == first
    with xm.fork_rng(enabled=False):
        pass


def test_fake_data_runs_through_the_device_loader():
    data = xu.SampleGenerator(data=(torch.zeros(2, 3), torch.zeros(2)), sample_count=4)
    seen = [x.device.type for x, y in pl.MpDeviceLoader(data, xm.xla_device())]
    assert seen == ["xla"] * 4 and len(data) == 4


def test_data_is_sent_to_the_device():
    batch = {"x": torch.ones(2), "n": 3}
    (sent,) = xm.send_cpu_data_to_device([batch], xm.xla_device())
    assert sent["x"].device.type == "xla" and sent["n"] == 3
    assert [t.device.type for t in xm.send_cpu_data_to_device(torch.ones(2), "xla")] == ["xla"]
    (needing,) = xm.send_cpu_data_to_device([torch.ones(2, requires_grad=True)], "xla")
    assert needing.requires_grad and needing.is_leaf


def test_a_wrapper_of_data_says_what_is_made_of_its_tensors_on_the_device():
    class Both(xu.DataWrapper):
        def __init__(self):
            self.both = [torch.ones(2), torch.zeros(2)]

        def get_tensors(self):
            return self.both

        def from_tensors(self, tensors):
            return tuple(tensors)

    ones, zeros = xm.send_cpu_data_to_device(Both(), "xla")
    assert (ones - zeros).tolist() == [1, 1] and ones.device.type == "xla"


def test_views_that_share_memory_are_found():
    base = torch.ones(4, device="xla")
    xm.check_view_sharing([base, torch.ones(4, device="xla")])
    with pytest.raises(RuntimeError, match=r"Tensor ID 0 .* is sharing a view with tensor ID 1"):
        xm.check_view_sharing([base, base[:2]])


def test_a_matrix_product_is_as_exact_as_asked():
    torch_xla.backends.set_mat_mul_precision("highest")
    assert torch_xla.backends.get_mat_mul_precision() == "highest"
    torch_xla.backends.set_mat_mul_precision("default")
    with pytest.raises(ValueError, match="must be one of default, high, highest"):
        torch_xla.backends.set_mat_mul_precision("best")


def test_what_must_be_chosen_early_refuses_to_be_late(tmp_path):
    xm.xla_device()
    with pytest.raises(RuntimeError, match=r"set_device_type.* already initialised with CPU"):
        xr.set_device_type("TPU")
    with pytest.raises(RuntimeError, match="initialize_cache: a device is already in use"):
        xr.initialize_cache(str(tmp_path))
    xr.set_device_type("CPU")
    assert xr.device_type() == "CPU"
    assert xr.is_bf16_supported()
    assert xr.runtime_device_attributes("xla:0")["name"] == "CPU:0"
    assert not xr.is_spmd()


def test_a_test_may_pretend_that_nothing_has_started(asked_again, monkeypatch):
    xm.xla_device()
    monkeypatch.setattr(torch_xla._XLAC, "_xla_runtime_is_initialized", lambda: False)
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    xr.set_device_type("TOASTER")
    assert os.environ["PJRT_DEVICE"] == "TOASTER"


def test_there_may_be_no_platform_until_one_is_named(asked_again, monkeypatch):
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    monkeypatch.setenv("PJRT_SELECT_DEFAULT_DEVICE", "0")
    assert xr.device_type() is None
    monkeypatch.setenv("PJRT_SELECT_DEFAULT_DEVICE", "1")
    assert xr.device_type() == "CPU"


def test_the_environment_may_ask_for_eager_mode(monkeypatch):
    monkeypatch.setenv("XLA_USE_EAGER_DEBUG_MODE", "1")
    eager.follow_environment()
    assert eager.is_eager_mode()
    eager.eager_mode(False)


def test_eager_mode_runs_every_operator_at_once():
    xm.mark_step()
    with torch_xla.experimental.eager_mode_context(True):
        before = cuts.REASONS["eager"]
        torch.ones(2, device="xla").add(1).mul(2)
        assert torch_xla.experimental.is_eager_mode() and cuts.REASONS["eager"] > before
    assert not torch_xla.experimental.is_eager_mode()

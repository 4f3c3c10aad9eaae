"""Private calls of the documents, DLPack, dynamo's bridge, and other narrow doors."""

import importlib.metadata

import pytest
import torch

import torch_xla
import torch_xla.core.dynamo_bridge as bridge
import torch_xla.utils.checkpoint as checkpoint
import torch_xla.utils.dlpack as dlpack
from torch_xdist import distribution_name
from torch_xdist.core.run import cuts
from torch_xdist.ranks import one_at_a_time
from torch_xla import _XLAC
from torch_xla._internal import pjrt


def test_devices_and_ids_are_told():
    assert _XLAC._xla_get_devices() == ["xla:0"] and _XLAC._xla_real_devices() == ["CPU:0"]
    assert _XLAC._xla_get_default_device() == "xla:0"
    assert _XLAC._xla_get_replication_devices_count() == 0
    x = torch.ones(2, 3, device="xla")
    assert _XLAC._xla_get_tensor_id(x) == _XLAC._xla_get_tensor_id(x.t()) != 0
    assert _XLAC._get_xla_tensor_dimension_size(x, 1).item() == 3
    assert _XLAC._get_xla_sharding_specs([x]) == [_XLAC._get_xla_sharding_spec(x)] == [""]
    assert _XLAC._get_git_revs()["torch"] == torch.__version__


def test_steps_and_syncs_by_their_private_names():
    x = torch.ones(2, device="xla") + 1
    _XLAC._xla_sync_multi([x], [])
    assert not x.value.trace.rows
    y = x * 2
    _XLAC._xla_step_marker("xla:0", [], wait=True)
    _XLAC._xla_wait_device_ops([])
    assert y.tolist() == [4, 4]
    (moved,) = _XLAC._xla_tensors_from_aten([torch.ones(1)], ["xla:0"])
    assert moved.device.type == "xla"
    _XLAC._xla_set_rng_seed(5)
    assert _XLAC._xla_get_rng_seed() == 5


def test_precision_and_execution_switches(capsys):
    _XLAC._xla_set_use_full_mat_mul_precision(True)
    assert torch_xla.backends.get_mat_mul_precision() == "highest"
    _XLAC._xla_set_mat_mul_precision("default")
    torch_xla.sync()
    assert _XLAC._set_allow_execution(False) and not _XLAC._get_allow_execution()
    pending = torch.ones(3, 19, device="xla") + 1
    with pytest.raises(RuntimeError, match="Unexpected execution happens inside the compiled"):
        pending.sum().item()
    assert "Unexpected Execution Analysis: Execution Cause\n" in capsys.readouterr().err
    assert not _XLAC._set_allow_execution(True)
    assert pending.sum().item() == 114


def test_memory_is_shared_by_dlpack():
    x = torch.arange(4.0).to("xla")
    assert torch.from_dlpack(dlpack.to_dlpack(x)).tolist() == [0, 1, 2, 3]
    assert dlpack.from_dlpack(torch.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="to_dlpack: the tensor is on cpu"):
        dlpack.to_dlpack(torch.ones(1))


def test_what_was_shared_stays_when_the_tensor_is_written():
    x = torch.arange(4.0).to("xla")
    shared = torch.from_dlpack(dlpack.to_dlpack(x))
    x.mul_(2)
    torch_xla.sync(wait=True)
    assert x.tolist() == [0, 2, 4, 6]
    assert shared.tolist() == [0, 1, 2, 3]


def test_a_captured_graph_runs_as_one_program():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.sin(x) + 1, x * 2

    x = torch.ones(3).to("xla")
    run = bridge.extract_compiled_graph(torch.fx.symbolic_trace(Model()), (x,))
    before = cuts.REASONS.total()
    left, right = run(x)
    assert cuts.REASONS.total() == before + 1
    torch.testing.assert_close(left.cpu(), torch.sin(torch.ones(3)) + 1)
    assert right.tolist() == [2, 2, 2]


def test_torch_compile_takes_the_backend():
    model = torch.nn.Linear(3, 1).to("xla")
    x = torch.ones(2, 3, device="xla")
    compiled = torch.compile(model, backend="openxla")
    out = compiled(x)
    torch.testing.assert_close(out.cpu(), model(x).cpu())
    out.sum().backward()
    assert model.weight.grad.tolist() == [[2, 2, 2]]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activations_are_computed_again(use_reentrant):
    calls = []

    def block(x):
        calls.append(1)
        return x.sin()

    x = torch.ones(2).to("xla").requires_grad_()
    checkpoint.checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
    assert len(calls) == 2
    torch.testing.assert_close(x.grad.cpu(), torch.ones(2).cos())


def test_a_model_moves_and_work_runs_one_rank_at_a_time():
    model = torch.nn.Linear(2, 2)
    assert one_at_a_time.MpModelWrapper(model).to("xla").weight.device.type == "xla"
    assert one_at_a_time.MpSerialExecutor().run(lambda: 5) == 5


def test_another_torch_xla_beside_ours_is_refused(monkeypatch):
    distribution_name.refuse_other_torch_xla("file")
    other = type("Distribution", (), {"version": "2.9.0"})
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: other)
    with pytest.raises(ImportError, match=r"PyTorch/XLA 2\.9\.0 is installed beside torch-xdist"):
        distribution_name.refuse_other_torch_xla("somewhere/torch_xla/__init__.py")


def test_libraries_that_ask_for_torch_xla_get_an_answer():
    assert importlib.metadata.version("torch_xla") == torch_xla.__version__
    assert importlib.metadata.version("torch-xla") == torch_xla.__version__
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("torch_xla_of_nobody")


def test_one_process_runs_by_the_runtimes_private_names():
    assert pjrt.run_singleprocess(lambda x: x + 1, 2) == {0: 3}
    assert pjrt.spawn_threads(lambda rank: rank) == {0: 0}

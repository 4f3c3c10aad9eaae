"""DTensor's functions on the logical device."""

import pytest
import torch
from spmd_process import SpmdProcess
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xdist.spmd import distribute
from torch_xla.distributed.spmd.api import with_xla

four = SpmdProcess(4)
plain = SpmdProcess(2, spmd=False)
spec_of = torch_xla._XLAC._get_xla_sharding_spec


def devices(*shape):
    return init_device_mesh("xla", shape or (4,))


@four
def test_torchs_distribute_tensor_marks_the_parameter_itself():
    layer = torch.nn.Linear(8, 8).to("xla")
    found = distribute_tensor(layer.weight, devices(), [Shard(0)])
    assert isinstance(found, xs.XLAShardedTensor)
    assert spec_of(layer.weight) == "{devices=[4,1]0,1,2,3}"


@four
def test_a_tensor_without_placements_is_on_every_device():
    found = xs.xla_distribute_tensor(torch.ones(4), devices())
    assert found.sharding_type == xs.ShardingType.REPLICATED
    again = xs.xla_distribute_tensor(found, devices(), [Shard(0)])
    with pytest.raises(AssertionError, match="is already annotated with non-replication sharding"):
        xs.xla_distribute_tensor(again, devices(), [Shard(0)])


@four
def test_placements_of_a_mesh_are_a_partition_spec():
    mesh = devices(2, 2)
    found = distribute.convert_to_xla_mesh(mesh)
    assert (found.mesh_shape, found.device_ids.tolist()) == ((2, 2), [0, 1, 2, 3])
    spec = distribute.convert_to_xla_partition_spec(torch.ones(4, 4), [Replicate(), Shard(1)])
    assert spec == (None, 1)
    with pytest.raises(ValueError, match="Unsupported placement type: Partial"):
        distribute.convert_to_xla_partition_spec(torch.ones(4), [Partial()])


@four
def test_two_axes_of_a_mesh_may_cut_one_dim():
    found = xs.xla_distribute_tensor(torch.ones(8, 4), devices(2, 2), [Shard(0), Shard(0)])
    assert found.partition_spec == ((0, 1), None)
    assert found.sharding_spec == "{devices=[4,1]0,1,2,3}"
    assert found.placements == (Shard(0), Shard(0))


@four
def test_what_does_not_fit_the_mesh_is_an_error():
    with pytest.raises(AssertionError, match="`placements` must have the same length as"):
        xs.xla_distribute_tensor(torch.ones(4), devices(), [Shard(0), Shard(0)])
    with pytest.raises(AssertionError, match="the DeviceMesh is of 'cpu', not 'xla'"):
        xs.xla_distribute_tensor(torch.ones(4), FewDevices("cpu"), [Shard(0)])
    with pytest.raises(AssertionError, match="the DeviceMesh has 2 devices, and there are 4"):
        distribute.convert_to_xla_mesh(FewDevices("xla"))


class FewDevices:
    """A DeviceMesh of two devices, as far as it is asked."""

    ndim = 1

    def __init__(self, device_type):
        self.device_type = device_type

    def size(self):
        return 2


@four
def test_a_function_shards_the_parameters_of_a_module():
    def cut(name, module, mesh):
        if isinstance(module, torch.nn.Linear):
            distribute_tensor(module.weight, mesh, [Shard(0)])

    model = torch.nn.Sequential(torch.nn.Linear(8, 8)).to("xla")
    seen = []
    xs.xla_distribute_module(
        model,
        devices(),
        cut,
        input_fn=lambda module, inputs, mesh: seen.append(len(inputs)),
        output_fn=lambda module, outputs, mesh: outputs * 0,
    )
    assert model(torch.ones(4, 8).to("xla")).abs().sum().item() == 0
    assert seen == [1]
    assert spec_of(model[0].weight) == "{devices=[4,1]0,1,2,3}"


@four
def test_hooks_of_two_arguments_are_called_with_a_warning_and_others_are_refused():
    model = torch.nn.Linear(4, 4).to("xla")
    with pytest.warns(UserWarning, match="Deprecating output_fn that takes two arguments"):
        xs.xla_distribute_module(model, devices(), output_fn=lambda outputs, mesh: outputs * 0)
    assert model(torch.ones(4, 4).to("xla")).sum().item() == 0
    with pytest.raises(
        ValueError, match="input_fn should take in 3 arguments, but got 1 arguments"
    ):
        xs.xla_distribute_module(model, devices(), input_fn=lambda inputs: None)


@four
def test_automatic_sharding_of_a_module_begins_on_the_cpu():
    with pytest.MonkeyPatch.context() as env:
        env.setenv("XLA_AUTO_SPMD", "0")
        with pytest.raises(AssertionError, match="Currently requires module to be on cpu"):
            xs.xla_distribute_module(torch.nn.Linear(4, 4).to("xla"), devices(), xs.auto_policy)
        model = xs.xla_distribute_module(torch.nn.Linear(4, 4), devices(), xs.auto_policy)
        model(torch.ones(4, 4).to("xla")).sum().item()
        assert spec_of(model.weight) == "{devices=[4,1]0,1,2,3}"


@plain
def test_a_function_with_xla_runs_in_spmd_mode():
    @with_xla
    def place(tensor, *, by):
        """Its own text."""
        return tensor.to("xla") * by

    assert not xr.is_spmd() and place.__doc__ == "Its own text."
    assert place(torch.ones(2), by=3).tolist() == [3, 3]
    assert xr.is_spmd() and xr.global_runtime_device_count() == 2

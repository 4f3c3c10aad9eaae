"""FSDPv2: the numbers of one device with a quarter of the parameters on each."""

import functools

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xdist.ranks.fsdp.wrap import transformer_auto_wrap_policy
from torch_xdist.spmd import fully_sharded, linear, mesh
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

four = SpmdProcess(4)
spec_of = torch_xla._XLAC._get_xla_sharding_spec


def network():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers).double()


def losses(model, place, cut=lambda x: None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    found = []
    for _ in range(4):
        x = place(torch.randn(8, 8, generator=draw, dtype=torch.float64))
        cut(x)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        found.append(loss.item())
    return found, optimizer


@four
def test_training_has_the_losses_of_the_cpu_and_a_quarter_of_the_memory():
    on = xs.get_1d_mesh("fsdp")
    policy = functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={torch.nn.Linear}
    )
    model = SpmdFullyShardedDataParallel(network(), mesh=on, auto_wrap_policy=policy)
    cut = functools.partial(xs.mark_sharding, mesh=on, partition_spec=("fsdp", None))
    found, optimizer = losses(model, lambda x: x.to("xla"), cut)
    np.testing.assert_allclose(found, losses(network(), lambda x: x)[0], rtol=1e-12)
    weight = model.module[0].weight
    for tensor in (weight, optimizer.state[weight]["exp_avg"]):
        assert tensor.value.buffer.addressable_shards[0].data.size == 8 * 16 // 4


@four
def test_modules_inside_cut_their_outputs_along_the_further_data_axis_too():
    on = xs.Mesh(np.arange(4), (2, 2), ("data", "fsdp"))
    policy = functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={torch.nn.Linear}
    )
    seen = []
    model = SpmdFullyShardedDataParallel(
        network(), mesh=on, auto_wrap_policy=policy, extra_data_axis="data"
    )
    model.module[0].register_forward_hook(lambda m, i, output: seen.append(spec_of(output)))
    model(torch.ones(8, 8, dtype=torch.float64).to("xla"))
    assert seen == ["{devices=[4,1]0,1,2,3}"]


@four
def test_a_module_inside_is_found_by_name_and_number():
    model = SpmdFullyShardedDataParallel(network(), mesh=xs.get_1d_mesh("fsdp"))
    assert model[0] is model.module[0]
    assert model.training is True
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        model.nothing  # noqa: B018


@four
def test_what_is_marked_already_stays_and_the_rest_is_cut_along_its_longest_dim():
    on = xs.Mesh(np.arange(4), (2, 2), ("fsdp", "tensor"))
    inner = torch.nn.Linear(8, 16).to("xla")
    xs.mark_sharding(inner.weight, on, (None, "tensor"))
    model = SpmdFullyShardedDataParallel(torch.nn.Sequential(inner), mesh=on)
    assert spec_of(inner.weight) == "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}"
    assert spec_of(inner.bias) == "{devices=[2,2]0,1,2,3 last_tile_dim_replicate}"
    assert model(torch.ones(4, 8).to("xla")).shape == (4, 16)


def test_a_spec_cuts_one_dim():
    spec = fully_sharded.prepare_spmd_partition_spec
    assert spec(torch.ones(())) == ()
    assert spec(torch.ones(2, 9)) == ("fsdp", None)
    assert spec(torch.ones(2, 9), shard_maximal=True) == (None, "fsdp")
    assert spec(torch.ones(2, 9), extra_data_axis="data") == (("data", "fsdp"), None)


class Gives(torch.nn.Module):
    """A module whose output is what it was made with."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output(x)


@four
def test_of_a_tuple_the_first_tensor_is_cut():
    on = xs.get_1d_mesh("fsdp")
    model = SpmdFullyShardedDataParallel(Gives(lambda x: (x * 2, x * 3)), mesh=on)
    with pytest.warns(UserWarning, match="is a tuple, but only the first element is sharded"):
        first, second = model(torch.ones(4, 4).to("xla"))
    assert (spec_of(first), spec_of(second)) == ("{devices=[4,1]0,1,2,3}", "")
    model = SpmdFullyShardedDataParallel(Gives(lambda x: {"x": x}), mesh=on)
    with pytest.raises(RuntimeError, match="The output type is not supported: <class 'dict'>"):
        model(torch.ones(4, 4).to("xla"))


@four
def test_what_cannot_be_wrapped_is_an_error():
    on = xs.get_1d_mesh("fsdp")
    wrapped = SpmdFullyShardedDataParallel(torch.nn.Linear(4, 4), mesh=on)
    with pytest.raises(RuntimeError, match="Cannot wrap a module that is already wrapped"):
        SpmdFullyShardedDataParallel(wrapped, mesh=on)
    with pytest.raises(RuntimeError, match=r"must define a `forward` method .* ModuleList has not"):
        SpmdFullyShardedDataParallel(torch.nn.ModuleList(), mesh=on)
    with pytest.raises(ValueError, match="Expected 0 to NOT be SpmdFullyShardedDataParallel"):
        SpmdFullyShardedDataParallel(
            torch.nn.Sequential(wrapped), mesh=on, auto_wrap_policy=lambda **_: True
        )


@four
def test_the_mesh_has_an_axis_for_it():
    layer = torch.nn.Linear(4, 4)
    mesh.set_global_mesh(None)
    with pytest.raises(ValueError, match="No mesh is provided and no global mesh is set"):
        SpmdFullyShardedDataParallel(layer)
    with pytest.raises(ValueError, match=r"must have an axis named 'fsdp'; its axes are \('x',\)"):
        SpmdFullyShardedDataParallel(layer, mesh=xs.get_1d_mesh("x"))
    with pytest.raises(ValueError, match="The provided data axis is not in the mesh"):
        SpmdFullyShardedDataParallel(layer, mesh=xs.get_1d_mesh("fsdp"), extra_data_axis="data")
    xs.set_global_mesh(xs.get_1d_mesh("fsdp"))
    assert SpmdFullyShardedDataParallel(layer).module is layer


@four
def test_a_linear_layer_as_an_einsum_is_the_layer():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Sequential(torch.nn.Linear(4, 2)))
    model = model.double().to("xla")
    weight = model[0].weight
    x = torch.randn(3, 5, 6, dtype=torch.float64).to("xla").requires_grad_()
    expected = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    linear.apply_xla_patch_to_nn_linear(model)
    assert isinstance(model[1][0], linear.EinsumLinear) and model[0].weight is weight
    found = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=1e-12, atol=1e-12)
    plain = linear.EinsumLinear(6, 4, bias=False).to("xla")
    assert plain(torch.ones(2, 6).to("xla")).shape == (2, 4)


@four
def test_a_layer_may_get_the_einsum_as_its_forward():
    layer, x = torch.nn.Linear(6, 4).to("xla"), torch.randn(3, 5, 6).to("xla")
    expected = layer(x)
    layer.forward = functools.partial(xs.xla_patched_nn_linear_forward, layer)
    found = layer(x)
    assert "xla::einsum_linear_forward" in torch_xla._XLAC._get_xla_tensors_text([found])
    torch.testing.assert_close(found.cpu(), expected.cpu())


@four
def test_a_barrier_in_the_backward_changes_no_gradient():
    x = torch.randn(4, 8, dtype=torch.float64)
    there, here = network().to("xla"), network()
    linear.apply_backward_optimization_barrier(there)
    # torch calls the hook too early where no input has a gradient.
    there(x.to("xla").requires_grad_()).square().sum().backward()
    here(x).square().sum().backward()
    weight = there[0].weight
    assert "opt-barrier" in torch_xla._XLAC._get_xla_tensors_hlo([weight.grad])
    torch.testing.assert_close(weight.grad.cpu(), here[0].weight.grad, rtol=1e-12, atol=1e-12)

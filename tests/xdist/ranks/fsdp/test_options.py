"""FSDP on a world of one: how modules are readied, what is refused, and unusual modules."""

import copy
import functools

import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist.errors import CheckpointError
from torch_xla.distributed import fsdp
from torch_xla.distributed.fsdp import FSDP, wrap
from torch_xla.distributed.fsdp.xla_flatten_params_wrapper import XlaFlattenParamsWrapper


def test_wrong_parameters_are_refused():
    with pytest.raises(RuntimeError, match=r"ModuleList has no forward\(\), in which its param"):
        FSDP(nn.ModuleList([nn.Linear(1, 1)]))
    with pytest.raises(ValueError, match=r"compute_dtype must be one of .*, not torch.int8"):
        FSDP(nn.Linear(1, 1), compute_dtype=torch.int8)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shard'"):
        FSDP(nn.Linear(1, 1), shard=True)
    with pytest.warns(UserWarning, match="FSDP: _debug_print=True has no effect here"):
        FSDP(nn.Linear(1, 1), _debug_print=True)
    with pytest.raises(TypeError, match="checkpoint_module: int is not a module"):
        fsdp.checkpoint_module(3)


def test_modules_on_meta_get_values():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3, device="meta"))

        def forward(self, x):
            return x * self.weight

    def fill(module):
        module.weight = nn.Parameter(torch.full((3,), 2.0))

    with torch.device("meta"):
        layer = nn.Linear(3, 3)
    assert FSDP(layer)(torch.ones(1, 3, device="xla")).shape == (1, 3)
    assert FSDP(Bare(), param_init_fn=fill)(torch.ones(3, device="xla")).tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match=r"Bare has parameters on the meta device and no reset_par"):
        FSDP(Bare())


def units(model):
    return [name for name, module in model.named_modules() if isinstance(module, FSDP)]


def test_policies_choose_the_units():
    def make():
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(9, 9), nn.ReLU()))

    inside = "_fsdp_wrapped_module._fpw_module."
    large = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=50)
    assert units(FSDP(make(), auto_wrap_policy=large)) == ["", f"{inside}1.0"]
    linear = functools.partial(
        wrap.lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, nn.Linear)
    )
    assert units(FSDP(make(), auto_wrap_policy=linear)) == ["", f"{inside}0", f"{inside}1.0"]
    assert len(units(FSDP(make(), auto_wrap_policy=wrap.always_wrap_policy))) == 5


def test_incomplete_checkpoints_are_refused(tmp_path):
    model = FSDP(nn.Linear(2, 2))
    metadata = {**model.get_shard_metadata(), "world_size": 2}
    with pytest.raises(CheckpointError, match="1 state dicts of a model sharded over 2 ranks"):
        fsdp.consolidate_sharded_state_dicts([model.state_dict()], metadata)
    with pytest.raises(FileNotFoundError, match=r"no file matches .*none"):
        fsdp.consolidate_sharded_model_checkpoints(str(tmp_path / "none"))
    torch.save({"model": {}, "shard_metadata": metadata}, tmp_path / "job-0.pth")
    with pytest.raises(CheckpointError, match=r"files of the ranks \[0\], of a model sharded over"):
        fsdp.consolidate_sharded_model_checkpoints(str(tmp_path / "job"))


def test_a_recurrent_module_and_its_copy_train():
    torch.manual_seed(0)
    plain = nn.LSTM(3, 4)
    model = FSDP(copy.deepcopy(plain))
    twin = copy.deepcopy(model)
    x = torch.randn(5, 2, 3)
    plain(x)[0].square().sum().backward()
    for one in (model, twin):
        out, (hidden, _) = one(x.to("xla"))
        out.square().sum().backward()
        torch_xla.sync()
        assert hidden.shape == (1, 2, 4)
    for one in (model, twin):
        found = dict(one.get_original_names_and_sharded_parameters())
        for name, expected in plain.named_parameters():
            gradient = found[name].grad.cpu()[: expected.numel()].reshape(expected.shape)
            torch.testing.assert_close(gradient, expected.grad, rtol=1e-4, atol=1e-5)


def test_a_whole_parameter_has_a_storage_of_its_size():
    model = FSDP(nn.Linear(3, 5))
    weight = model.module.weight
    assert weight.untyped_storage().nbytes() == 60
    assert weight.as_strided((3,), (1,), 2).tolist() == weight.flatten()[2:5].tolist()
    assert XlaFlattenParamsWrapper(nn.Linear(3, 5)).flat_params[0].shape == (20,)

"""Modules whose parameters are joined: views, state dicts, metadata, pickles."""

import pickle

import pytest
import torch
from torch import nn

from torch_xdist.errors import ArgumentError
from torch_xla.distributed.fsdp import xla_flatten_params_wrapper as flat
from torch_xla.distributed.fsdp._init_utils import FlatParameter

Wrapper = flat.XlaFlattenParamsWrapper


def model(device="cpu"):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    made[2].bias = made[0].bias
    return made.to(device)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_wrapped_module_trains_like_the_module(device):
    plain, wrapped = model(), Wrapper(model(device))
    assert [name for name, _ in wrapped.named_parameters()] == ["flat_param_0"]
    assert wrapped.flat_param.numel() == sum(p.numel() for p in plain.parameters())
    for one in (plain, wrapped):
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            where = next(one.parameters()).device
            one(torch.ones(4, 2, device=where)).square().mean().backward()
            optimizer.step()
    state = wrapped.state_dict()
    assert list(state) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name].cpu(), value)
    assert wrapped[0] is wrapped.module[0]


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_state_dicts_of_both_kinds_are_taken(device):
    saved = Wrapper(model(device))
    for state in (saved.state_dict(), saved.flat_state_dict()):
        other = Wrapper(model(device))
        with torch.no_grad():
            other.flat_param.zero_()
        other.load_state_dict(state)
        assert other.flat_param.tolist() == saved.flat_param.tolist()
        assert other.module[0].weight.tolist() == saved.module[0].weight.tolist()
    (name,) = Wrapper(model(device), auto_unflatten_state_dict=False).state_dict()
    assert name == "flat_param_0"
    other.load_state_dict({"flat_param": torch.zeros_like(saved.flat_param)})
    assert other.flat_param.abs().sum() == 0


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_parameters_can_be_had_apart_for_a_while(device):
    wrapped = Wrapper(model(device))
    with wrapped.unflatten_params():
        assert wrapped.flat_params == [] and isinstance(wrapped.module[0].weight, nn.Parameter)
        assert wrapped.module[0].bias is wrapped.module[2].bias
        with torch.no_grad():
            wrapped.module[0].weight.fill_(7.0)
        with (
            pytest.raises(ArgumentError, match="the module is unflattened already"),
            wrapped.unflatten_params([torch.zeros(1)]),
        ):
            pass
        with wrapped.unflatten_params():
            pass
    assert wrapped.flat_param[:6].tolist() == [7.0] * 6
    given = torch.zeros_like(wrapped.flat_param)
    with wrapped.unflatten_params([given]):
        assert wrapped.module[0].weight.abs().sum() == 0
    assert wrapped.module[0].weight.tolist() == [[7.0] * 2] * 3


def test_groups_have_names_and_metadata():
    made = model()
    wrapped = Wrapper(made, [list(made[0].parameters()), [made[3].weight]], ["front", "end"])
    assert wrapped.flat_param_names == ["flat_param_front", "flat_param_end"]
    names = ["flat_param_front", "flat_param_end", "_fpw_module.2.weight", "_fpw_module.3.bias"]
    assert [name for name, _ in wrapped.named_parameters()] == names
    assert wrapped.metadata(0)[0] == ["_fpw_module.0.weight", "_fpw_module.0.bias"]
    assert wrapped.metadata(1)[1:] == ([torch.Size([1, 3])], [3])
    assert wrapped.num_params_managed == 3
    assert [tuple(v.shape) for v in wrapped.get_param_views()] == [(3, 2), (3,), (1, 3)]
    given = [None, torch.zeros(3)]
    assert list(wrapped.get_param_views(given))[2].tolist() == [[0, 0, 0]]
    assert Wrapper(model(), list(made.parameters())[:0]).flat_params == []
    with pytest.raises(ArgumentError, match="flat_param: there are 2; use flat_params"):
        _ = wrapped.flat_param
    with pytest.raises(ArgumentError, match="1 tensors for 2 flat parameters"):
        list(wrapped.get_param_views([None]))


def test_wrong_groups_are_refused():
    made = model()
    with pytest.raises(ArgumentError, match="a parameter is in two groups of param_list"):
        Wrapper(made, [[made[3].weight], [made[3].weight]])
    with pytest.raises(ArgumentError, match=r"flat_param_names is \['a'\] for 2 groups"):
        Wrapper(made, [[made[0].weight], [made[3].weight]], ["a"])
    made[3].weight.requires_grad_(False)
    with pytest.raises(ArgumentError, match="a group has parameters of 2 kinds of dtype and req"):
        Wrapper(made)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_flat_parameter_knows_its_members(device):
    members = [nn.Parameter(torch.ones(2, 2, device=device)), nn.Parameter(torch.zeros(3))]
    members[1] = nn.Parameter(members[1].detach().to(device))
    joined = FlatParameter(members, requires_grad=False)
    assert isinstance(joined, FlatParameter) and isinstance(joined, flat.FlatTypes)
    assert not joined.requires_grad and not isinstance(members[0], FlatParameter)
    assert joined.metadata() == ([], [torch.Size([2, 2]), torch.Size([3])], [4, 3])
    assert [v.tolist() for v in joined.get_param_views(torch.arange(7.0))][1] == [4, 5, 6]
    with pytest.raises(ArgumentError, match="the data has 3 elements, and the members 7"):
        joined.get_param_views(torch.zeros(3))


def test_a_flat_parameter_moves_and_is_pickled_with_what_it_knows():
    joined = FlatParameter([torch.ones(2, 2)])
    for other in (pickle.loads(pickle.dumps(joined)), joined.to(torch.bfloat16)):
        assert isinstance(other, FlatParameter) and other.metadata() == joined.metadata()
    assert flat.State._fields[:2] == ("param_numels", "param_shapes")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ([], r"params is \[\]; give it a list of parameters"),
        ([3], "params holds a int; give it parameters"),
        ([FlatParameter([torch.ones(1)])], "params holds a flat parameter already"),
    ],
)
def test_what_cannot_be_joined_is_refused(params, words):
    with pytest.raises(ArgumentError, match=words):
        FlatParameter(params)


def test_the_beginnings_of_keys_are_replaced():
    state = {"layer.w": 1, "other": 2}
    flat.replace_by_prefix_(state, "layer.", "module.layer.")
    assert state == {"module.layer.w": 1, "other": 2}
    with pytest.raises(ValueError, match="both prefixes are 'a'; they must be distinct"):
        flat.replace_by_prefix_(state, "a", "a")

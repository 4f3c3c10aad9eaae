"""Modules on their way to the device: which parameters stay the same objects, and which cannot."""

import io
import warnings

import pytest
import torch
from torch import nn

import torch_xdist.core.torch_side.registration  # noqa: F401


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _tied() -> nn.Sequential:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5))
    module[2].weight = module[0].weight
    return module


def test_parameters_stay_the_same_objects_with_their_gradients():
    module = _tied()
    module(torch.arange(3)).sum().backward()
    before = [*module.parameters()]
    module.to("xla")
    assert all(new is old for new, old in zip(module.parameters(), before))
    assert module[2].weight is module[0].weight
    assert all(p.is_xla and p.grad.is_xla for p in before)


def test_parameters_that_a_graph_holds_become_new_ones():
    module = _tied()
    out = module(torch.arange(3))
    out.sum().backward(retain_graph=True)
    before = dict(module.named_parameters())
    module[0].weight.tag = "tied"
    with pytest.warns(
        UserWarning,
        match=r"Sequential\.to\('xla'\): .* still holds 0\.weight, 1\.weight, which become new "
        r"parameters\. An optimizer made before .* make it after this line",
    ) as caught:
        module.to(device="xla")
    assert caught[0].filename == __file__
    assert module[2].weight is module[0].weight and module[0].weight.tag == "tied"
    assert module[1].bias is before["1.bias"]
    for name, parameter in module.named_parameters():
        assert parameter.is_xla and parameter.requires_grad
        assert torch.equal(parameter.grad.cpu(), before[name].grad.cpu()), name
    torch.testing.assert_close(module(torch.arange(3).to("xla")).cpu(), out.detach())


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_module_converts_while_a_graph_holds_its_parameters(device):
    model = torch.nn.Linear(3, 2).to(device)
    weight, optimizer = model.weight, torch.optim.SGD(model.parameters(), 0.5)
    alive = model(torch.ones(1, 3, device=device))
    alive.sum().backward(retain_graph=True)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        model.to(dtype)
        assert model.weight is weight and weight.dtype is weight.grad.dtype is dtype
        optimizer.zero_grad()
        before = weight.detach().clone()
        model(torch.ones(1, 3, device=device, dtype=dtype)).sum().backward()
        optimizer.step()
        assert torch.equal(weight.detach().cpu(), before.cpu() - 0.5)
    assert model.to(memory_format=torch.channels_last).weight is weight
    assert alive.shape == (1, 2)


def test_a_module_of_the_meta_device_has_no_numbers_to_move():
    model = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(NotImplementedError, match=r"no data! Please use torch.nn.Module.to_empty"):
        model.to("xla")
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
        torch.ones(2, device="xla").copy_(torch.ones(2, device="meta"))
    assert model.to_empty(device="xla").weight.device.type == "xla"


def test_parameters_keep_their_attributes():
    module = nn.Linear(2, 2)
    module.weight.is_shared_by_ranks = True
    assert module.to("xla").weight.is_shared_by_ranks
    assert module.bfloat16().weight.is_shared_by_ranks and module.weight.dtype == torch.bfloat16
    assert module.weight.tolist() and module.cpu().weight.is_shared_by_ranks


class _Boxed(torch.Tensor):
    """A tensor that holds another one, as quantized ones hold their scales."""


def test_what_a_parameter_of_another_class_is_made_of_does_not_go_with_it():
    module = nn.Linear(2, 2)
    boxed = torch.ones(2, 2).as_subclass(_Boxed)
    module.weight = nn.Parameter(boxed)
    module.weight.scale = torch.ones(1)
    module._apply(lambda t: t.as_subclass(torch.Tensor).to("xla"))
    assert module.weight.is_xla and "scale" not in module.weight.__dict__


def test_the_graph_on_the_cpu_goes_on_with_the_old_parameters():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    weight, out = module[1].weight, module(torch.ones(1, 3))
    with pytest.warns(UserWarning, match="still holds 1.weight"):
        module.to("xla")
    grad = torch.autograd.grad(out.sum(), weight)[0]
    assert grad.device.type == "cpu" and grad.shape == weight.shape


def test_names_of_many_held_parameters_are_counted():
    module = nn.LSTM(4, 4, bidirectional=True)
    out = module(torch.ones(2, 3, 4))
    with pytest.warns(
        UserWarning, match="weight_ih_l0, weight_hh_l0, bias_ih_l0 and 5 more, which"
    ):
        module.to("xla")
    torch.testing.assert_close(module(torch.ones(2, 3, 4, device="xla"))[0].cpu(), out[0].detach())


def test_frozen_parameters_that_a_graph_holds_become_new_ones():
    module = nn.Linear(4, 4).requires_grad_(False)
    out = module(torch.ones(1, 4, requires_grad=True))
    with pytest.warns(UserWarning, match="still holds weight, which"):
        module.to("xla")
    assert not module.weight.requires_grad and out.requires_grad


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.Linear], ids=lambda make: make.__name__)
def test_a_pass_without_gradients_holds_nothing(make):
    module = make(4, 4)
    with torch.no_grad():
        out = module(torch.ones(2, 3, 4))
    before = [*module.parameters()]
    module.to("xla")
    assert all(new is old for new, old in zip(module.parameters(), before)), out


def test_a_conversion_on_the_cpu_is_torchs_own():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    weight, out = module[1].weight, module(torch.ones(1, 3))
    assert module.to("cpu", torch.float64)[1].weight is weight, out


def test_what_to_does_not_take_is_refused_in_torchs_words():
    with pytest.raises(TypeError, match="to\\(\\) received an invalid combination"):
        nn.Linear(2, 2).to(xla=1)


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.layer(x))
        if y.dim() > 1:
            y = y.relu() + y.sigmoid()
        return y


def scripted():
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.manual_seed(0)
    return torch.jit.script(Scripted())


def loaded():
    file = io.BytesIO()
    module = scripted()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.parametrize("make", [scripted, loaded])
def test_a_scripted_module_trains_on_the_device(make):
    there, here = make().to("xla"), make()
    x = torch.randn(5, 4)
    for _ in range(4):
        for module in (there, here):
            device = next(module.parameters()).device
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            optimizer.zero_grad()
            module(x.to(device)).square().sum().backward()
            optimizer.step()
    assert {t.device.type for t in (*there.parameters(), *there.buffers())} == {"xla"}
    for (name, found), expected in zip(there.state_dict().items(), here.state_dict().values()):
        torch.testing.assert_close(found.cpu(), expected, msg=name)


@pytest.mark.parametrize("make", [scripted, loaded])
def test_a_scripted_module_in_another_one_moves_with_it_there_and_back(make):
    whole = torch.nn.Sequential(make(), torch.nn.Linear(3, 1))
    expected = {name: value.clone() for name, value in whole.state_dict().items()}
    whole(torch.ones(2, 4)).sum().backward()
    gradients = [p.grad.clone() for p in whole.parameters()]
    whole.eval().to("xla")
    assert {p.device.type for p in whole.parameters()} == {"xla"}
    assert whole(torch.ones(2, 4).to("xla")).shape == (2, 1)
    whole.cpu()
    for p, gradient in zip(whole.parameters(), gradients):
        assert p.device.type == p.grad.device.type == "cpu"
        assert torch.equal(p.grad, gradient)
    for name, value in whole.state_dict().items():
        assert "running" in name or "num_batches" in name or torch.equal(value, expected[name])


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_tied_parameters_of_a_scripted_module_stay_tied():
    warnings.simplefilter("ignore", DeprecationWarning)
    module = torch.jit.script(Tied())
    assert module.first.weight is module.second.weight
    module.to("xla")
    assert module.first.weight is module.second.weight
    assert len([*module.parameters()]) == 3


def test_a_scripted_module_that_stays_on_the_cpu_is_torchs_affair():
    module = scripted()
    held = module.layer.weight
    module.double()
    assert module.layer.weight is held
    assert held.dtype == torch.float64

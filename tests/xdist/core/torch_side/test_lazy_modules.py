"""torch's lazy modules: parameters that belong to the device before they have a size."""

import copy

import pytest
import torch
from torch import nn

import torch_xdist.core.torch_side.registration  # noqa: F401

WAYS = {
    "moved": lambda: nn.LazyLinear(3).to("xla"),
    "made there": lambda: nn.LazyLinear(3, device="xla"),
    "copied": lambda: copy.deepcopy(nn.LazyLinear(3, device="xla")),
    "converted there": lambda: nn.LazyLinear(3).to("xla").double().float(),
}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_a_lazy_module_finds_its_sizes_on_the_device(make):
    module = make()
    weight = module.weight
    assert weight.device == torch.device("xla:0") and weight.is_xla
    module(torch.ones(2, 5, device="xla")).sum().backward()
    assert module.weight is weight and isinstance(weight, nn.Parameter)
    assert weight.shape == weight.grad.shape == (3, 5)
    assert weight.grad.device == torch.device("xla:0")


def test_a_lazy_module_goes_back_to_the_cpu():
    module = nn.LazyLinear(3, device="xla").cpu()
    assert module(torch.ones(2, 5)).device.type == module.weight.device.type == "cpu"


def test_lazy_buffers_are_buffers_of_the_device():
    with torch.device("xla"):
        module = nn.LazyBatchNorm1d()
    module(torch.tensor([[1.0], [3.0]]).to("xla"))
    assert module.running_mean.tolist() == pytest.approx([0.2])
    assert "running_mean" in module.state_dict() and module.running_mean.is_xla


def test_a_default_device_does_not_reach_values_that_are_read():
    with torch.device("xla"):
        assert torch.ones(2).cpu().device.type == "cpu"

"""Layers in one loop compute what they compute one after another, on the CPU."""

import copy
import gc
import re
import weakref

import pytest
import torch

import torch_xla
from torch_xdist.core.programs import program
from torch_xdist.errors import ArgumentError, ValueLostError
from torch_xla.experimental.scan_layers import _ONE_LAYER_CACHE, scan_layers


class Block(torch.nn.Module):
    """Parameters, a buffer, and two arguments, which are its results too."""

    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.register_buffer("shift", torch.randn(size))

    def forward(self, x, count):
        return torch.tanh(self.linear(x) + self.shift), count + 1


def test_results_and_gradients_are_those_of_the_layers_in_turn():
    torch.manual_seed(0)
    cpu = [Block(4) for _ in range(5)]
    device = [copy.deepcopy(layer).to("xla") for layer in cpu]
    x = torch.randn(3, 4, requires_grad=True)
    there = x.detach().to("xla").requires_grad_()
    expected = x, torch.zeros(())
    for layer in cpu:
        expected = layer(*expected)
    got = scan_layers(device, (there, torch.zeros((), device="xla")))
    torch.testing.assert_close(got[0].cpu(), expected[0])
    assert got[1].item() == 5
    expected[0].sum().backward()
    got[0].sum().backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad)
    for one, other in zip(cpu, device):
        torch.testing.assert_close(other.linear.weight.grad.cpu(), one.linear.weight.grad)
        torch.testing.assert_close(other.linear.bias.grad.cpu(), one.linear.bias.grad)


def test_running_statistics_are_those_of_the_layers_in_turn():
    torch.manual_seed(0)
    cpu = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)) for _ in range(3)]
    device = [copy.deepcopy(layer).to("xla") for layer in cpu]
    x = torch.randn(6, 4)
    for _ in range(2):
        expected = torch.nn.Sequential(*cpu)(x)
        got = scan_layers(device, x.to("xla"))
    torch.testing.assert_close(got.cpu(), expected)
    expected.square().sum().backward()
    got.square().sum().backward()
    for one, other in zip(cpu, device):
        for name, buffer in one.named_buffers():
            torch.testing.assert_close(other.get_buffer(name).cpu(), buffer)
        torch.testing.assert_close(other[1].weight.grad.cpu(), one[1].weight.grad)


def test_no_layers_give_the_input_back():
    x = torch.ones(2, device="xla")
    assert scan_layers([], x) is x


def test_layers_without_tensors_run_in_turn():
    x = torch.tensor([-1.0, 4.0], device="xla")
    assert scan_layers([torch.nn.ReLU(), torch.nn.ReLU()], x).tolist() == [0, 4]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (torch.nn.Linear(2, 3), r"Shape mismatch: weight has shape \(3, 2\) in layer 1, \(2, 2\)"),
        (torch.nn.Linear(2, 2, bias=False), r"layer 1 has mismatched keys: it lacks \['bias'\]"),
    ],
)
def test_layers_of_several_forms_are_refused(second, words):
    with pytest.raises(ArgumentError, match=words):
        scan_layers([torch.nn.Linear(2, 2), second], torch.ones(2, device="xla"))


def test_a_pure_layer_is_traced_once_and_goes_when_it_is_deleted():
    runs = []

    class Layer(torch.nn.Linear):
        def forward(self, x):
            runs.append(1)
            return super().forward(x) ** 3

    layers = [Layer(2, 2).to("xla") for _ in range(2)]
    x = torch.ones(1, 2, device="xla", requires_grad=True)
    scan_layers(layers, x, is_layer_pure=True)
    traced = len(runs)
    found = scan_layers(layers, x, is_layer_pure=True)
    assert len(runs) == traced
    key, weight = (id(None), id(layers[0])), weakref.ref(layers[0].weight)
    assert key in _ONE_LAYER_CACHE
    layers.clear()
    gc.collect()
    assert key not in _ONE_LAYER_CACHE
    with pytest.raises(ValueLostError, match=r"scan_layers: .* the first layer is gone; keep it"):
        torch.autograd.grad(found.sum(), x, create_graph=True)
    del found
    gc.collect()
    assert weight() is None


class Odd(torch.nn.Module):
    """A parameter that nothing is computed with, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(3))
        self.unused = torch.nn.Parameter(torch.randn(3))
        self.shift = torch.nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x):
        return torch.tanh(x * self.scale + self.shift)


def odd_layers():
    torch.manual_seed(0)
    cpu = [Odd() for _ in range(3)]
    return cpu, [copy.deepcopy(layer).to("xla") for layer in cpu], torch.randn(3)


def test_a_parameter_that_no_layer_uses_has_no_gradient():
    cpu, device, x = odd_layers()
    torch.nn.Sequential(*cpu)(x).sum().backward()
    scan_layers(device, x.to("xla")).sum().backward()
    for one, other in zip(cpu, device):
        torch.testing.assert_close(other.scale.grad.cpu(), one.scale.grad)
        assert other.unused.grad is None
        assert other.shift.grad is None


@pytest.mark.parametrize("is_host", [True, False])
def test_gradients_of_gradients_are_those_of_the_layers_in_turn(is_host, choose):
    choose(is_host=is_host)
    cpu, device, x = odd_layers()

    def twice(layers, result):
        scales = [layer.scale for layer in layers]
        unused = [layer.unused for layer in layers]
        given = result.square().sum(), [*scales, *unused]
        found = torch.autograd.grad(*given, create_graph=True, allow_unused=True)
        # Of one layer's gradient alone: those of the others are none.
        total = found[1].square().sum()
        return found[len(layers) :], torch.autograd.grad(total, scales)

    _, expected = twice(cpu, torch.nn.Sequential(*cpu)(x))
    of_unused, found = twice(device, scan_layers(device, x.to("xla")))
    for one, other in zip(expected, found):
        torch.testing.assert_close(other.cpu(), one)
    assert [row.tolist() for row in of_unused] == [[0.0] * 3] * 3


def kernels_of(layers):
    """The forms of the kernels of a step of so many layers, and how many kernels it has."""
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(3, 8, device="xla")
    program.PROGRAMS.clear()
    for _ in range(4):
        optimizer.zero_grad()
        scan_layers(model, x).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
    of_step = max(program.PROGRAMS.values(), key=lambda p: p.used)
    # Without what tells one from the other, and where each comes from.
    text = re.sub(r"\.\d+|, metadata=\{.*?\}", "", of_step.executable.text())
    kernels = re.findall(r"^%fused_computation\S* (\(.*?^\})", text, re.DOTALL | re.MULTILINE)
    return set(kernels), len(kernels)


def test_more_layers_are_more_kernels_of_the_same_forms():
    (few, of_few), (many, of_many) = kernels_of(4), kernels_of(8)
    # Of two parameters and an update of three results, for each layer.
    assert of_many - of_few >= 4 * 2 * 3
    assert len(many) == len(few)


def test_elsewhere_than_on_cpus_gradients_are_views_of_one(choose):
    choose(is_host=False)
    cpu, device, x = odd_layers()
    torch.nn.Sequential(*cpu)(x).sum().backward()
    scan_layers(device, x.to("xla")).sum().backward()
    parents = {layer.scale.grad.value.parent for layer in device}
    assert len(parents) == 1 and None not in parents
    for one, other in zip(cpu, device):
        torch.testing.assert_close(other.scale.grad.cpu(), one.scale.grad)
        assert other.unused.grad is None

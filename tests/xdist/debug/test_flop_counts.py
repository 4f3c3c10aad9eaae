"""torch's counter of floating point operations sees the device's products as it sees the CPU's."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import torch_xla  # noqa: F401


def counted(device, model, *shape, needs_grad=True):
    """The operations of a step."""
    model = model.to(device)
    x = torch.randn(shape).to(device).requires_grad_(needs_grad)
    with FlopCounterMode(display=False) as counter:
        model(x).square().sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(lambda: nn.Linear(8, 16), (32, 8), id="rows"),
        pytest.param(lambda: nn.Linear(8, 16), (2, 5, 8), id="batches of rows"),
        pytest.param(lambda: nn.Linear(8, 16, bias=False), (2, 5, 8), id="no bias"),
        pytest.param(lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3)), (4, 8), id="two"),
        pytest.param(lambda: nn.Conv2d(3, 8, 3), (2, 3, 9, 9), id="convolution"),
    ],
)
@pytest.mark.parametrize("needs_grad", [True, False])
def test_a_step_counts_what_it_counts_on_the_cpu(model, shape, needs_grad):
    expected = counted("cpu", model(), *shape, needs_grad=needs_grad)
    assert counted("xla", model(), *shape, needs_grad=needs_grad) == expected > 0


def test_a_frozen_weight_costs_nothing_backward():
    layer = nn.Linear(8, 16)
    layer.weight.requires_grad_(False)
    # Forward, and backward for the input alone.
    assert counted("xla", layer, 32, 8) == 2 * 2 * 32 * 8 * 16


def test_the_counter_is_told_when_it_is_imported_later_and_once():
    code = """
import sys, torch, torch_xla
assert "torch.utils.flop_counter" not in sys.modules
from torch.utils.flop_counter import flop_registry
formula = flop_registry[torch.ops.aten.linear_backward]
torch_xla._flop_counts.register()
assert flop_registry[torch.ops.aten.linear_backward] is formula
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

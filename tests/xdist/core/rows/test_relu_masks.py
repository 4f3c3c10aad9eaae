"""Gradients of ReLU by what goes into it, after a batch norm."""

import pytest
import torch
import torch.nn.functional as F

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.programs import program
from torch_xdist.core.rows import relu_masks
from torch_xdist.core.trace.trace import rows_of


@pytest.fixture
def reads_once(choose):
    choose(reads_once=True)
    program.PROGRAMS.clear()
    yield
    program.PROGRAMS.clear()


def gradients(device, activation=F.relu):
    torch.manual_seed(0)
    x, norm = torch.randn(4, 3, 5, 5), torch.nn.BatchNorm2d(3)
    x[0, 0, 0, 0] = float("nan")
    x, norm = x.to(device).requires_grad_(), norm.to(device)
    activation(norm(x)).cos().sum().backward()
    return x.grad, norm.weight.grad, norm.bias.grad


def mask_operands(activation):
    """What the gradient of the activation reads to know where it was positive, by operator."""
    torch_xla.sync()
    kept = gradients("xla", activation)
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    rows = dict(rows_of(relu_masks.by_operands(entries)))
    found = [
        rows[row[2]][0].name.split(".")[1]
        for row in rows.values()
        if row[0].name == "aten.threshold_backward.default"
    ]
    del kept
    return found


def test_after_a_batch_norm_its_result_is_asked():
    assert mask_operands(F.relu) == ["_native_batch_norm_legit_functional"]
    assert mask_operands(lambda x: F.relu(x, inplace=True)) == mask_operands(F.relu)


def test_after_anything_else_and_at_another_threshold_nothing_changes():
    assert mask_operands(lambda x: F.relu(x + 1)) == ["relu"]
    assert mask_operands(lambda x: F.threshold(F.relu(x), -1, 0)) == [
        "relu",
        "_native_batch_norm_legit_functional",
    ]


@pytest.mark.parametrize("activation", [F.relu, lambda x: F.threshold(F.relu(x), -1, 0)])
def test_gradients_are_those_of_torch(activation, reads_once):
    for ours, theirs in zip(gradients("xla", activation), gradients("cpu", activation)):
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)

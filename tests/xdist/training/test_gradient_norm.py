"""Gradients scaled to a norm, beside torch's function on the CPU."""

import math

import pytest
import torch

from torch_xdist.core.run import cuts
from torch_xla import _patched_functions


def parameters(device):
    made = [torch.nn.Parameter(torch.ones(n, device=device)) for n in (2, 3)]
    for number, parameter in enumerate(made):
        parameter.grad = torch.arange(1.0, parameter.numel() + 1).to(device) * (number + 1)
    return made


@pytest.mark.parametrize("norm_type", [2.0, 1.0, _patched_functions.inf])
def test_gradients_are_scaled_as_by_torch_without_a_cut(norm_type):
    ours, theirs = parameters("xla"), parameters("cpu")
    expected = torch.nn.utils.clip_grad_norm_(theirs, 1.5, norm_type)
    before = len(cuts.LOG)
    norm = _patched_functions.clip_grad_norm_(ours, 1.5, norm_type)
    assert len(cuts.LOG) == before and norm.device.type == "xla"
    torch.testing.assert_close(norm.cpu(), expected)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_without_gradients_the_norm_is_zero_on_the_device():
    norm = _patched_functions.clip_grad_norm_(torch.nn.Parameter(torch.ones(2)), 1.0)
    assert norm.device.type == "xla" and norm.item() == 0


def test_a_norm_that_is_no_number_and_foreach_are_refused():
    (parameter, _) = parameters("xla")
    parameter.grad.fill_(math.nan)
    with pytest.raises(RuntimeError, match="non-finite"):
        _patched_functions.clip_grad_norm_(parameter, 1.0, error_if_nonfinite=True)
    with pytest.raises(RuntimeError, match="foreach=True is not supported with XLA"):
        _patched_functions.clip_grad_norm_(parameter, 1.0, foreach=True)


def test_the_gru_is_torchs_gru():
    assert _patched_functions.ScanGRU is torch.nn.GRU

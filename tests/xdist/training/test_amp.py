"""Autocast, the gradient scaler, and optimizers whose step a flag on the device skips."""

import copy

import pytest
import torch

import torch_xla.core.xla_model as xm
from torch_xdist import metrics
from torch_xdist.core.devices import steps
from torch_xdist.core.run import cuts, loop_cuts
from torch_xla.amp import GradScaler, autocast, syncfree


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3).to("xla")


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_autocast_lowers_the_precision_of_products(model, dtype):
    x = torch.ones(2, 4, device="xla")
    with autocast(xm.xla_device(), dtype=dtype):
        assert model(x).dtype == (dtype or torch.bfloat16)
    with autocast(xm.xla_device(), enabled=False):
        assert model(x).dtype == torch.float32
    assert autocast("xla:0")(lambda: model(x).dtype)() == torch.bfloat16


def test_autocast_of_another_device_changes_nothing():
    with pytest.warns(UserWarning, match="cpu is no xla device, so it changes nothing here"):
        cast = autocast(torch.device("cpu"))
    with cast:
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32


OPTIMIZERS = [
    (syncfree.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (syncfree.Adam, torch.optim.Adam, {"lr": 0.1}),
    (syncfree.AdamW, torch.optim.AdamW, {"lr": 0.1}),
]


@pytest.mark.parametrize(("ours", "torchs", "options"), OPTIMIZERS)
def test_a_flag_skips_the_step_without_a_cut(model, ours, torchs, options):
    expected = copy.deepcopy(model).cpu()
    optimizer = ours(model.parameters(), **options)
    reference = torchs(expected.parameters(), **options)
    xm.mark_step()
    before = cuts.REASONS.total()
    for found_inf in (0.0, 1.0, 0.0):
        for one in (model, expected):
            one.zero_grad()
            device = next(one.parameters()).device
            one(torch.ones(2, 4, device=device)).square().sum().backward()
        with loop_cuts.held():
            optimizer.step(found_inf=torch.tensor(found_inf).to("xla"))
        if not found_inf:
            reference.step()
    assert cuts.REASONS.total() == before
    for left, right in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(left.detach().cpu(), right.detach())


@pytest.mark.parametrize("make", [torch.optim.SGD, syncfree.SGD])
@pytest.mark.parametrize("zero", [False, True])
def test_the_scaler_skips_a_step_that_overflows(model, make, zero):
    optimizer = make(model.parameters(), lr=0.1)
    scaler = GradScaler(init_scale=8.0, use_zero_grad=zero)
    before = model.weight.detach().cpu().clone()
    scaler.scale(model(torch.full((1, 4), torch.inf, device="xla")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight.detach().cpu(), before) and scaler.get_scale() == 4.0
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(1, 4, device="xla")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.1)


def test_the_documented_flow_reduces_unscaled_gradients(model):
    optimizer = syncfree.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler()
    with autocast(xm.xla_device()):
        loss = model(torch.ones(1, 4, device="xla")).sum()
    scaler.scale(loss).backward()
    gradients = xm._fetch_gradients(optimizer)
    xm.all_reduce("sum", gradients, scale=1.0 / xm.xrt_world_size())
    before = model.bias.detach().cpu().clone()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(model.bias.detach().cpu(), before - 0.1)


def test_the_scale_is_no_row_of_the_first_step():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).to("xla")
    optimizer, scaler = torch.optim.AdamW(model.parameters()), GradScaler(init_scale=4.0)
    x = torch.randn(3, 8).to("xla")
    programs = []
    for _ in range(3):
        before = metrics.counter_value("UncachedCompile") or 0
        optimizer.zero_grad()
        scaler.scale(model(x).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        steps.sync()
        programs.append((metrics.counter_value("UncachedCompile") or 0) - before)
    assert programs[1:] == [0, 0] and scaler.get_scale() == 4

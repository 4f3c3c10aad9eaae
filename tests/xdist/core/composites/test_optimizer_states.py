"""The first step of an optimizer is the program of every later one."""

import warnings

import pytest
import torch
from torch import nn

from torch_xdist import metrics
from torch_xdist.core.devices import steps

OPTIMIZERS = {
    "Adam": lambda ps: torch.optim.Adam(ps, amsgrad=True),
    "AdamW, not foreach": lambda ps: torch.optim.AdamW(ps, foreach=False),
    "SGD": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, not foreach": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=False),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, momentum=0.9, centered=True),
    "NAdam": torch.optim.NAdam,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
}


def trained(device, make, steps_count=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer, batch = make(model.parameters()), torch.randn(5, 4).to(device)
    programs = []
    for _ in range(steps_count):
        before = metrics.counter_value("UncachedCompile") or 0
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        optimizer.step()
        steps.sync()
        del loss
        programs.append((metrics.counter_value("UncachedCompile") or 0) - before)
    return model, optimizer, programs


@pytest.mark.on_cpu
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_three_steps_are_one_program_and_give_what_the_cpu_gives(make):
    here, _, _ = trained("cpu", make)
    there, _, programs = trained("xla", make)
    assert programs[1:] == [0, 0] and programs[0] <= 1
    for mine, theirs in zip(there.parameters(), here.parameters()):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-6)


def test_dampening_begins_with_the_gradient():
    make = lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, dampening=0.5)  # noqa: E731
    here, _, _ = trained("cpu", make)
    there, _, _ = trained("xla", make)
    for mine, theirs in zip(there.parameters(), here.parameters()):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-6)


def test_no_gradient_goes_through_the_first_momentum_of_a_step_that_is_differentiable():
    def slope(device):
        leaf = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        parameter = leaf.clone()
        options = {"momentum": 0.9, "weight_decay": 0.1, "differentiable": True}
        optimizer = torch.optim.SGD([parameter], 0.5, **options)
        parameter.grad = torch.ones_like(leaf)
        optimizer.step()
        return torch.autograd.grad(parameter.square().sum(), leaf)[0].cpu()

    torch.testing.assert_close(slope("xla"), slope("cpu"))


def test_the_state_is_what_the_cpus_optimizer_has():
    for make in (OPTIMIZERS["Adam"], OPTIMIZERS["SGD"]):
        (_, here, _), (_, there, _) = trained("cpu", make, 1), trained("xla", make, 1)
        mine, theirs = there.state_dict()["state"], here.state_dict()["state"]
        assert mine.keys() == theirs.keys()
        for number, state in theirs.items():
            assert mine[number].keys() == state.keys()
            for name, value in state.items():
                torch.testing.assert_close(mine[number][name].cpu(), value, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_a_gradient_has_no_momentum():
    used, unused = (torch.ones(2, device="xla", requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([used, unused], 0.1, momentum=0.9)
    used.sum().backward()
    optimizer.step()
    assert [*optimizer.state] == [used]


def test_a_first_step_that_fails_changes_no_later_one():
    p = torch.ones(2, device="xla", requires_grad=True)
    optimizer = torch.optim.Adam([p])
    p.grad = torch.ones(2, device="xla")

    def fails():
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        optimizer.step(fails)
    assert torch.zeros_like(p).add(1).tolist() == [1, 1]
    for _ in range(2):
        optimizer.step()
    assert torch.zeros_like(p).value.buffer is None  # a row again


def test_what_is_made_on_another_device_is_not_made_here():
    p = torch.ones(2, device="xla", requires_grad=True)

    class Mine(torch.optim.Optimizer):
        def step(self, closure=None):
            self.state[p]["there"] = torch.zeros_like(p, device="cpu")
            self.state[p]["whole"] = p.new_zeros(3, dtype=torch.int64)
            self.state[p]["ones"] = torch.ones_like(p, dtype=torch.bfloat16)

    optimizer = Mine([p], {})
    optimizer.step()
    made = optimizer.state[p]
    assert made["there"].device.type == "cpu" and made["whole"].tolist() == [0, 0, 0]
    assert made["ones"].dtype is torch.bfloat16 and made["ones"].tolist() == [1, 1]


@pytest.mark.on_cpu
@pytest.mark.parametrize("kind", ["xla", "cuda"])
def test_the_scale_of_torchs_scaler_is_made_in_no_program(kind):
    model = nn.Linear(4, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # Scripts for GPUs name "cuda": with torch_xla installed it is enabled without one, as torch has
    # it, and goes by the device of the loss.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = torch.amp.GradScaler(kind, init_scale=64.0, enabled=True)
    scaler._enabled = True
    steps.sync()
    programs = []
    for _ in range(3):
        before = metrics.counter_value("UncachedCompile") or 0
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(3, 4, device="xla")).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        steps.sync()
        programs.append((metrics.counter_value("UncachedCompile") or 0) - before)
    assert programs[1:] == [0, 0]
    assert scaler.get_scale() == 64.0 and scaler._growth_tracker.item() == 3


def test_a_scale_on_another_device_is_torchs():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert scaler.scale(torch.ones(2)).tolist() == [8.0, 8.0]
    assert scaler._scale.device.type == "cpu"

"""The first step of an optimizer is the program of every later one."""

import warnings

import pytest
import torch
from torch import nn

from torch_xdist import metrics
from torch_xdist.core.devices import steps
from torch_xdist.training import syncfree

OPTIMIZERS = {
    "Adam": lambda ps: torch.optim.Adam(ps, amsgrad=True),
    "AdamW, not foreach": lambda ps: torch.optim.AdamW(ps, foreach=False),
    "SGD": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, not foreach": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=False),
    "SGD, syncfree": lambda ps: syncfree.SGD(ps, 0.1, momentum=0.9),
    "Rprop": torch.optim.Rprop,
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


class OfMyOwn(torch.optim.Optimizer):
    """An optimizer that makes its state, and more, in all ways there are."""

    def __init__(self, parameters, reads=False):
        super().__init__(parameters, {})
        self.reads = reads

    @torch.no_grad()
    def step(self, closure=None):
        # What each step makes anew is no state.
        norm = torch.zeros(1, device=self.param_groups[0]["params"][0].device)
        for p in self.param_groups[0]["params"]:
            norm.add_(p.grad.pow(2).sum())
        if self.reads and norm.sqrt().item() < 0:
            return
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["mean"] = torch.zeros(p.shape, dtype=p.dtype, device=p.device)
                state["start"] = p.clone()
                state["scale"] = torch.full_like(p, 0.125)
                state["rate"] = torch.ones((), device=p.device)
                state["least"] = p.new_full((1,), 2)
            before, half = p.clone(), torch.full((), 0.5, device=p.device)
            state["mean"].lerp_(p.grad, 0.5)
            state["scale"].mul_(1.5)
            state["rate"].add_(1)
            p.sub_(state["mean"] * state["scale"] / state["rate"] / state["least"])
            p.lerp_(before * half + state["start"] * half, 0.25)
            p.mul_(norm / (norm + 1))


@pytest.mark.on_cpu
@pytest.mark.parametrize("reads", [False, True])
def test_states_that_are_made_in_other_ways_are_in_one_program_too(reads):
    make = lambda ps: OfMyOwn([*ps], reads)  # noqa: E731
    here, mine, _ = trained("cpu", make)
    there, theirs, programs = trained("xla", make)
    # With a value that is read in the step there are two.
    assert programs == [1 + reads, 0, 0]
    for one, other in zip(there.parameters(), here.parameters()):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-6)
    for one, other in zip(theirs.state.values(), mine.state.values()):
        for name, value in other.items():
            torch.testing.assert_close(one[name].cpu(), value, rtol=1e-5, atol=1e-6)


def test_an_optimizer_in_another_ones_first_step_leaves_it_to_that():
    p = torch.ones(2, device="xla", requires_grad=True)
    inner = torch.optim.Adam([p])

    class Outer(torch.optim.Optimizer):
        def step(self, closure=None):
            inner.step()
            self.state[p]["later"] = torch.zeros_like(p)

    p.grad = torch.ones(2, device="xla")
    outer = Outer([p], {})
    outer.step()
    assert outer.state[p]["later"].value.buffer is not None
    assert torch.zeros_like(p).value.buffer is None


def test_a_number_that_the_dtype_does_not_hold_is_left_to_torch():
    p = torch.ones(2, device="xla", requires_grad=True)
    p.grad = torch.ones(2, device="xla")

    class Mine(torch.optim.Optimizer):
        def step(self, closure=None):
            self.state[p]["odd"] = torch.full_like(p, 1j, dtype=torch.complex64)
            self.state[p]["many"] = p.new_full((1,), 300.0, dtype=torch.int64)

    optimizer = Mine([p], {})
    optimizer.step()
    assert optimizer.state[p]["odd"].tolist() == [1j, 1j]
    assert optimizer.state[p]["many"].tolist() == [300]


def test_a_first_step_that_failed_is_over_with_the_step_of_the_script():
    p = torch.ones(2, device="xla", requires_grad=True)
    p.grad = torch.ones(2, device="xla")
    failed = torch.optim.Adam([p])

    def fails():
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        failed.step(fails)
    steps.sync()
    assert torch.zeros_like(p).value.buffer is None
    torch.optim.Adam([p]).step()
    assert torch.zeros_like(p).value.buffer is None


def test_who_looked_for_a_state_has_made_none():
    p = torch.ones(2, device="xla", requires_grad=True)
    p.grad = torch.ones(2, device="xla")
    optimizer = torch.optim.Adam([p])
    assert optimizer.state[p] == {}
    steps.sync()
    optimizer.step()
    steps.sync()
    before = metrics.counter_value("UncachedCompile") or 0
    optimizer.step()
    steps.sync()
    assert metrics.counter_value("UncachedCompile") == before

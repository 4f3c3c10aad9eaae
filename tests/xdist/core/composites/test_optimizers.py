"""Whatever a schedule may write into an optimizer is an input of the step's program."""

import inspect
import math
import random

import pytest
import torch

import torch_xla
from torch_xdist import platforms
from torch_xdist.core.composites import optimizers
from torch_xdist.core.programs import program
from torch_xdist.core.run import cuts
from torch_xla.amp import syncfree

# SparseAdam takes sparse gradients only; LBFGS reads losses, so it cuts within a step.
SKIPPED = {"Optimizer", "SparseAdam", "LBFGS"}
OPTIMIZERS = [
    cls
    for name, cls in sorted(vars(torch.optim).items())
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and name not in SKIPPED
]
FORMS = [
    pytest.param(cls, form, id=f"{cls.__name__}-{form}")
    for cls in OPTIMIZERS
    for form in ("default", "foreach", "fused", "capturable")
    if form == "default" or form in inspect.signature(cls).parameters
]


def model_on(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Linear(4, 6, bias=False), torch.nn.Tanh(), torch.nn.Linear(6, 2, bias=False)
    )
    return layers.to(device)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(next(model.parameters()))
    (model(x) - 0.3).square().sum().backward()
    optimizer.step()
    torch_xla.sync()


def schedule(optimizer: torch.optim.Optimizer, number: int) -> None:
    """Write other numbers into every hyperparameter, the same for the same step."""
    numbers = random.Random(number)
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(optimizer, torch.optim.ASGD) and name == "alpha":
                # An exponent: those are constants of a program.
                continue
            if isinstance(value, float) and value:
                group[name] = value * numbers.uniform(0.9, 1.0)
            elif isinstance(value, tuple) and all(isinstance(v, float) for v in value):
                group[name] = tuple(v * numbers.uniform(0.99, 1.0) for v in value)


def options_of(cls: type, form: str) -> dict:
    """The options that make each of the update's terms exist."""
    wanted = {
        "lr": 0.013, "weight_decay": 0.017, "momentum": 0.83, "dampening": 0.21, "eps": 3e-6,
    }  # fmt: skip
    known = inspect.signature(cls).parameters
    options = {name: value for name, value in wanted.items() if name in known}
    if cls is torch.optim.Adafactor:
        options["eps"] = (1e-30, 1.3e-3)
    return options if form == "default" else {**options, form: True}


def train(cls: type, options: dict, device: str, steps: int) -> tuple[list[torch.Tensor], int]:
    """The parameters after some scheduled steps, and how many programs came after the fourth."""
    model = model_on(device)
    optimizer = cls(model.parameters(), **options)
    for number in range(steps):
        if number == 4:
            before = len(cuts.LOG)
        schedule(optimizer, number)
        step(model, optimizer)
    late = sum(cut.compiled for cut in list(cuts.LOG)[before:])
    return [p.detach().cpu() for p in model.parameters()], late


@pytest.mark.on_cpu
@pytest.mark.parametrize(("cls", "form"), FORMS)
def test_scheduled_numbers_compile_nothing_new_and_are_what_the_update_uses(cls, form):
    options = options_of(cls, form)
    found, late = train(cls, options, "xla", 8)
    assert late == 0
    wanted, _ = train(cls, options_of(cls, "default"), "cpu", 8)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("cls", [syncfree.SGD, syncfree.Adam, syncfree.AdamW])
def test_scheduled_numbers_of_the_syncfree_optimizers_compile_nothing_new(cls):
    options = options_of(cls, "default")
    found, late = train(cls, options, "xla", 8)
    assert late == 0
    wanted, _ = train(getattr(torch.optim, cls.__name__), options, "cpu", 8)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("make", [torch.optim.lr_scheduler.OneCycleLR, "cyclic"])
@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_a_cycle_of_rates_and_momenta_compiles_one_program(cls, make):
    model = model_on("xla")
    options = {"momentum": 0.9} if cls is torch.optim.SGD else {}
    optimizer = cls(model.parameters(), lr=1e-3, **options)
    if make == "cyclic":
        scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-4, 1e-2, step_size_up=4)
    else:
        scheduler = make(optimizer, max_lr=1e-2, total_steps=12)
    for number in range(10):
        if number == 3:
            before = len(cuts.LOG)
        step(model, optimizer)
        scheduler.step()
    assert sum(cut.compiled for cut in list(cuts.LOG)[before:]) == 0


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
def test_turning_maximize_on_and_off_again_compiles_at_most_one_program_more(cls):
    model = model_on("xla")
    optimizer = cls(model.parameters(), lr=1e-3)
    compiled = []
    for number in range(10):
        optimizer.param_groups[0]["maximize"] = number % 2 == 1
        before = len(cuts.LOG)
        step(model, optimizer)
        compiled.append(sum(cut.compiled for cut in list(cuts.LOG)[before:]))
    assert compiled[4:] == [0] * 6
    assert all(math.isfinite(p.sum().item()) for p in model.parameters())


def train_in_turns(device: str) -> list[torch.Tensor]:
    """Five steps of Adam, of which the second layer misses every other."""
    model = model_on(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for number in range(5):
        model[2].requires_grad_(number % 2 == 0)
        with torch.device(device if number > 2 else "cpu"):
            step(model, optimizer)
    assert [state["step"].item() for state in optimizer.state.values()] == [5, 3]
    return [p.detach().cpu() for p in model.parameters()]


def test_parameters_at_different_step_counts_are_updated_as_on_the_cpu():
    for ours, theirs in zip(train_in_turns("xla"), train_in_turns("cpu")):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_large_parameters_that_are_updated_apart_become_the_same(
    dtype, choose, monkeypatch
) -> None:
    def trained() -> list[torch.Tensor]:
        program.PROGRAMS.clear()
        model = model_on("xla").to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer)
        return [parameter.detach().cpu() for parameter in model.parameters()]

    # Of the weights of `model_on` the first one is large.
    monkeypatch.setattr(optimizers, "_LARGE", 20)
    together = trained()
    choose(updates_apart=True)
    torch.testing.assert_close(trained(), together, rtol=1e-6, atol=1e-6)


def test_their_scalars_are_no_places_of_one_array_then(choose, monkeypatch) -> None:
    def text() -> str:
        # Nothing that an earlier test made may be taken.
        program.PROGRAMS.clear()
        model = model_on("xla")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step(model, optimizer)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return str(torch_xla._XLAC._get_xla_tensors_hlo([*model.parameters()]))

    monkeypatch.setattr(optimizers, "_LARGE", 20)
    choose(updates_apart=False)
    assert "opt-barrier(" not in text()
    choose(updates_apart=True)
    assert text().count("opt-barrier(") == 1
    monkeypatch.setattr(optimizers, "_LARGE", 25)
    assert "opt-barrier(" not in text()
    assert [name for name, x in platforms.CHOICES.items() if x.updates_apart] == ["cuda"]

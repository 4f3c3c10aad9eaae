"""The first batch ends what a script made before it, so that all steps are one program."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from unended_loops import fresh, reasons

import torch_xla
from torch_xdist import metrics, settings
from torch_xdist.core.run import cuts
from torch_xdist.core.run.device_trace import HERE


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    for _ in fresh(monkeypatch):
        HERE.trace.rounds = cuts.Rounds()
        yield


def layers(count: int = 5) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(count)])


def batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


def train(net, mean=None, device="xla"):
    """Three steps, with a running mean of the parameters."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x = batch().to(device)
        optimizer.zero_grad()
        F.mse_loss(net(x), x).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, quick in zip(mean or [], net.parameters()):
                slow.lerp_(quick, 0.25)
        torch_xla.sync()


def compiled() -> list[bool]:
    """Of each program that ran, whether it was compiled for that."""
    return [cut.compiled for cut in cuts.LOG]


@pytest.mark.parametrize(
    "copied",
    [
        lambda net: [*copy.deepcopy(net).requires_grad_(False).parameters()],
        lambda net: [p.clone().detach() for p in net.parameters()],
    ],
    ids=["deepcopy", "clones"],
)
def test_copies_of_the_parameters_are_a_program_before_the_steps(copied):
    expected = layers()
    of_expected = copied(expected)
    train(expected, of_expected, "cpu")
    cuts.LOG.clear()
    net = layers().to("xla")
    mean = copied(net)
    train(net, mean)
    assert reasons() == ["begin", "sync", "sync", "sync"]
    assert compiled()[2:] == [False, False]
    for got, want in zip([*mean, *net.parameters()], [*of_expected, *expected.parameters()]):
        torch.testing.assert_close(got.detach().cpu(), want.detach())


def test_a_model_that_is_made_on_the_device_is_a_program_before_the_steps():
    with torch.device("xla"):
        net = layers()
    train(net)
    assert reasons() == ["begin", "sync", "sync", "sync"]
    assert compiled()[2:] == [False, False]


def test_it_is_no_step_and_is_counted():
    net = layers().to("xla")
    mean = copy.deepcopy(net)
    before = metrics.counter_value("Cut.begin") or 0
    batch().to("xla")
    assert metrics.counter_value("Cut.begin") == before + 1
    assert all(p.value.buffer is not None for p in mean.parameters())


def test_only_the_first_batch_after_a_model_ends_what_was_before():
    net = layers().to("xla")
    batch().to("xla")
    mean = copy.deepcopy(net)
    batch().to("xla")
    assert reasons() == []
    assert mean is not None


def test_another_model_has_a_first_batch_too():
    for _ in range(2):
        net = layers().to("xla")
        mean = copy.deepcopy(net)
        train(net, [*mean.parameters()])
        torch_xla.sync()
    assert reasons() == ["begin", "sync", "sync", "sync"] * 2


def test_what_a_module_puts_on_the_device_is_not_the_first_batch():
    net = layers().to("xla")
    mean = copy.deepcopy(net)
    layers().to("xla")
    assert reasons() == []
    batch().to("xla")
    assert reasons() == ["begin"]
    assert mean is not None


def test_numbers_and_few_rows_end_nothing():
    net = layers(1).to("xla")
    mean = copy.deepcopy(net)
    torch.tensor(1.0).to("xla")
    batch().to("xla")
    assert reasons() == []
    assert mean is not None


def test_a_forward_pass_on_what_is_made_on_the_device_stays_with_its_step():
    net = layers(8).to("xla")
    out = net(torch.randn(3, 4, device="xla"))
    target = batch().to("xla")
    assert reasons() == []
    assert F.mse_loss(out, target).isfinite()


def test_pending_collectives_stay_with_the_first_step():
    net = layers().to("xla")
    mean = copy.deepcopy(net)
    pending = HERE.trace.tape.collectives
    pending[0] = "all_reduce"
    try:
        batch().to("xla")
        assert reasons() == []
    finally:
        pending.clear()
    assert mean is not None


@contextmanager
def setting(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> Iterator[None]:
    monkeypatch.setenv(name, value)
    settings.reread()
    try:
        yield
    finally:
        monkeypatch.undo()
        settings.reread()


def test_the_setting_leaves_it_to_the_first_step(monkeypatch):
    with setting(monkeypatch, "XDIST_CUT_LOOPS", "0"):
        net = layers().to("xla")
        mean = copy.deepcopy(net)
        batch().to("xla")
        assert reasons() == []
        assert mean is not None


def test_reports_say_why_it_ran(monkeypatch, capsys):
    with setting(monkeypatch, "PT_XLA_DEBUG_LEVEL", "2"):
        net = layers().to("xla")
        mean = copy.deepcopy(net)
        batch().to("xla")
        assert mean is not None
    assert (
        "Execution Cause\nExecution Analysis:   the first batch came after"
        in capsys.readouterr().err
    )

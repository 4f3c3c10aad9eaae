"""Modes of torch and of this thread: where nothing is replayed, and what makes a variant."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla
from torch_xdist import metrics, settings
from torch_xdist.core.devices import device
from torch_xdist.core.run import analysis
from torch_xdist.core.trace import donation, notes
from torch_xdist.replay.modes import modes, refusal


def here():
    return device.device_at(0)


class Sees(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Intercepts(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        (Sees, "a TorchDispatchMode wants to see every operator"),
        (Intercepts, "a TorchFunctionMode wants to see every call"),
        (torch.autograd.graph.save_on_cpu, "hooks want to see what autograd saves"),
        (lambda: donation.only_given(True), "programs may overwrite nothing but what was given"),
    ],
)
def test_a_mode_that_wants_to_see_what_runs_refuses(mode, told):
    assert refusal(here()) == ""
    with mode():
        assert told in refusal(here())
    assert refusal(here()) == ""


def test_notes_and_forbidden_runs_refuse():
    notes.set_noting(True)
    try:
        assert "it is noted where rows are recorded" in refusal(here())
    finally:
        notes.set_noting(False)
    before = analysis.set_allow_execution(False)
    try:
        assert refusal(here()) == "programs may not run"
    finally:
        analysis.set_allow_execution(before)


def test_variables_that_ask_for_texts_refuse(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
    settings.reread()
    try:
        assert "a variable asks for texts about what runs" in refusal(here())
    finally:
        monkeypatch.undo()
        settings.reread()


def test_a_sharded_device_refuses(monkeypatch):
    monkeypatch.setattr(here(), "layout", object())
    assert refusal(here()) == "tensors of the logical device are sharded (SPMD)"


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("xla", torch.bfloat16),
        lambda: torch.device("cpu"),
        torch.autograd.detect_anomaly,
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_mode_makes_another_variant(mode):
    before = modes(here())
    with mode():
        assert modes(here()) != before
    assert modes(here()) == before


def test_a_function_is_recorded_where_nothing_is_replayed():
    step = torch_xla.compile(lambda x: x + 1, pure=True)
    x = torch.ones(2).to("xla")
    for _ in range(4):
        step(x)
    before = metrics.counter_value("ReplayedStep")
    with Sees():
        assert step(x).tolist() == [2, 2]
    assert metrics.counter_value("ReplayedStep") == before
    assert metrics.counter_value("ReplayRefused.mode")

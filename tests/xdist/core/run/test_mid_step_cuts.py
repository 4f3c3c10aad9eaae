"""Steps that are cut in their middle because Python reads a value there."""

import re

import pytest
import torch

import torch_xla
from torch_xdist import metrics, settings
from torch_xdist.core.run import mid_step_cuts


@pytest.fixture(autouse=True)
def _fresh():
    torch_xla.sync()
    mid_step_cuts.clear()


def told(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if "in the middle" in line]


def branching(steps):
    total = torch.zeros(8, device="xla")
    for _ in range(steps):
        total += 1
        if total.sum() > 0:
            total *= 2
        torch_xla.sync()


def test_a_branch_on_a_tensor_is_told_once_with_its_line_and_its_cost(capsys):
    before = metrics.counter_value("CutInStep") or 0
    branching(12)
    (line,) = told(capsys)
    own = branching.__code__.co_firstlineno + 4
    assert re.search(rf"test_mid_step_cuts\.py:{own}: after step \d+ .* \d+\.\d ms per step", line)
    assert metrics.counter_value("CutInStep") == before + 1


def test_an_item_and_a_print_are_each_told(capsys):
    x = torch.ones(4, device="xla")
    for _ in range(10):
        x = x + x.sum().item()
        print(x.mean())
        x = x / 100
        torch_xla.sync()
    captured = [line.split(": ")[1] for line in told(capsys)]
    assert len({*captured}) == 2


def test_a_read_that_ends_the_step_is_not_told(capsys):
    x = torch.ones(4, device="xla")
    for _ in range(10):
        x = x * 2
        x.sum().item()
        torch_xla.sync()
    assert not told(capsys)


def test_a_read_after_the_step_is_not_told(capsys):
    x = torch.ones(4, device="xla")
    for _ in range(10):
        x = x * 2
        loss = x.sum()
        torch_xla.sync()
        loss.item()
    assert not told(capsys)


def test_reads_of_a_script_without_steps_are_not_told(capsys):
    x = torch.ones(4, device="xla")
    for _ in range(10):
        x = x / x.sum().item()
    assert not told(capsys)


def test_a_read_that_happens_twice_is_not_told(capsys):
    branching(3)
    assert not told(capsys)


def test_the_words_can_be_turned_off(capsys, monkeypatch):
    monkeypatch.setenv("XDIST_EXPLAIN_RECOMPILES", "0")
    settings.reread()
    try:
        branching(10)
    finally:
        monkeypatch.undo()
        settings.reread()
    assert not told(capsys)

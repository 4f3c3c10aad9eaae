"""A compilation that takes long says so while it goes on."""

import re
import time

import pytest
import torch

from torch_xdist import world
from torch_xdist.core.devices import steps
from torch_xdist.core.programs import compile_notice
from torch_xdist.core.programs.compile_notice import told_if_long
from torch_xdist.system.rank import Rank


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(compile_notice, "_FIRST_S", 0.02)


def test_a_long_compilation_is_told_while_it_goes_on_and_when_it_is_over(soon, capfd):
    with told_if_long(7):
        time.sleep(0.5)
    *going_on, over = capfd.readouterr().err.splitlines()
    text = rf"torch_xdist: {re.escape(__file__)}:\d+: compiling a program of 7 operators, "
    assert all(re.fullmatch(text + r"\d s so far", line) for line in going_on)
    assert re.fullmatch(text + r"over after \d s", over)
    # After 0.02 s, and 0.02, 0.04, 0.08, ... s later.
    assert 2 <= len(going_on) <= 6


def test_a_short_one_is_not_told(capfd):
    with told_if_long(7):
        pass
    assert capfd.readouterr().err == ""


def test_one_that_fails_is_over_too(soon, capfd):
    with pytest.raises(ValueError, match="no"), told_if_long(7):
        time.sleep(0.2)
        raise ValueError("no")
    assert "over after" in capfd.readouterr().err


@pytest.mark.parametrize("rank", [Rank(1, 2, 1, 2), Rank(control="somewhere")])
def test_other_ranks_and_those_of_a_launcher_are_silent(rank, soon, capfd, monkeypatch):
    monkeypatch.setattr(world, "current", lambda: rank)
    with told_if_long(7):
        time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_a_step_names_the_line_that_ended_it(soon, capfd):
    steps.sync()  # what tests before have recorded is none of it
    capfd.readouterr()
    x = torch.randn(13, 13).to("xla")
    for _ in range(40):
        x = (x @ x).tanh().sort(0).values
    steps.sync()
    told = capfd.readouterr().err
    assert re.search(rf"{re.escape(__file__)}:\d+: compiling a program of 120 operators", told)

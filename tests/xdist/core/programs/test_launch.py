"""A launch that asks for less than a known program returns."""

import itertools

import pytest
import torch

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.programs import program
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.trace import donation


@pytest.fixture
def weight():
    torch_xla.sync()
    program.PROGRAMS.clear()
    found = torch.arange(4.0).to("xla")
    found.mul_(1.5)
    torch_xla.sync()
    return found


def compiled():
    return metrics.counter_value("UncachedCompile") or 0


def step(weight, names):
    """Those of a step's results that somebody has when it runs."""
    made = {"before": weight.cos(), "sine": weight.sin(), "sum": weight.exp().sum()}
    weight.mul_(0.5).add_(made["sum"] * 0)
    held = [made[name] for name in names]
    del made
    torch_xla.sync()
    return [t.cpu() for t in held]


def expected(weight, names):
    made = {"before": weight.cos(), "sine": weight.sin(), "sum": weight.exp().sum()}
    weight.mul_(0.5)
    return [made[name] for name in names]


ALL = ("before", "sine", "sum")


@pytest.mark.parametrize("names", [(), ("sine",), ("before", "sum"), ("sum",)], ids=str)
def test_what_is_wanted_once_without_a_result_is_no_program(weight, names):
    host = weight.cpu()
    torch.testing.assert_close(step(weight, ALL), expected(host, ALL))
    before = compiled()
    torch.testing.assert_close(step(weight, names), expected(host, names))
    assert compiled() == before
    torch.testing.assert_close(weight.cpu(), host)
    torch.testing.assert_close(step(weight, ALL), expected(host, ALL))
    assert compiled() == before


def test_what_comes_again_soon_has_a_program_of_its_own(weight):
    step(weight, ALL)
    counts = [compiled()]
    for _ in range(3):
        step(weight, ("sine",))
        counts.append(compiled())
    assert [b - a for a, b in itertools.pairwise(counts)] == [0, 1, 0]


def test_the_program_with_the_fewest_others_serves(weight):
    step(weight, ALL)
    step(weight, ALL[:2])
    step(weight, ALL[:2])
    launched = []
    trace = devices_here.trace_of(devices_here.default_index())
    trace.observer = lambda run, launch: launched.append(launch)
    try:
        step(weight, ("sine",))
    finally:
        trace.observer = None
    assert len(launched[0].outs) == 3 and launched[0].wanted is not None


def test_a_program_without_a_wanted_result_does_not_serve(weight):
    step(weight, ("sine",))
    before = compiled()
    step(weight, ("before",))
    assert compiled() == before + 1


def test_what_the_user_gave_away_goes(weight, monkeypatch):
    step(weight, ALL)
    before = compiled()
    monkeypatch.setattr(donation, "is_given", lambda buffer: True)
    step(weight, ())
    assert compiled() == before + 1


def test_results_are_named_for_those_who_asked():
    launch = Launch(None, None, (), (), (), (3, 7), ())
    assert [*launch.named((3, 7))] == [3, 7]
    more = launch.returning((1, 3, 5, 7))
    assert more.outs == (1, 3, 5, 7) and more.wanted == (1, 3)
    assert more.named((30, 70)) == [-1, 30, -1, 70]

"""A compilation that takes long says so while it goes on."""

import re
import time

import pytest
import torch

from torch_xdist import world
from torch_xdist.core.devices import steps
from torch_xdist.core.kept import compile_times, on_disk
from torch_xdist.core.programs import compile_notice
from torch_xdist.core.programs.compile_notice import told_if_long
from torch_xdist.system.rank import Rank


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(compile_notice, "_FIRST_S", 0.02)
    monkeypatch.setattr(compile_notice, "_FIRST_LIVE_S", 0.02)
    monkeypatch.setattr(compile_notice, "_EACH_S", 0.05)


@pytest.fixture(autouse=True)
def times(monkeypatch):
    """What is kept of compilations, by name."""
    kept = {}
    monkeypatch.setattr(compile_times, "_LEAST_S", 0.01)
    monkeypatch.setattr(on_disk, "find", lambda name, **_: kept.get(name))
    monkeypatch.setattr(on_disk, "keep", lambda name, value, **_: kept.update({name: value}))
    return kept


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(compile_notice, "_is_terminal", lambda: True)


PLACE = rf"torch_xdist: {re.escape(__file__)}:\d+: "
GOING_ON = PLACE + r"compiling step \d+ \(4,700 operators\) \.\.\. \d+ s"


def test_in_a_pipe_it_is_told_ever_more_seldom_and_when_it_is_over(soon, capfd):
    with told_if_long(4700):
        time.sleep(0.5)
    *going_on, over = capfd.readouterr().err.splitlines()
    assert all(re.fullmatch(GOING_ON, line) for line in going_on)
    assert re.fullmatch(PLACE + r"compiled a program of 4,700 operators in \d s", over)
    # After 0.02 s, and 0.02, 0.04, 0.08, ... s later.
    assert 2 <= len(going_on) <= 6


def test_on_a_terminal_it_is_one_line_that_is_written_anew(soon, terminal, capfd):
    with told_if_long(4700):
        time.sleep(0.3)
    begin, *parts, end = capfd.readouterr().err.split("\r\x1b[K")
    assert begin == "" and len(parts) >= 2 and end.endswith("\n")
    assert all(re.fullmatch(GOING_ON, part) for part in parts)
    assert re.fullmatch(PLACE + r"compiled a program of 4,700 operators in \d s\n", end)


def test_on_a_terminal_a_line_of_a_short_one_is_gone_at_its_end(soon, terminal, capfd, monkeypatch):
    monkeypatch.setattr(compile_notice, "_FIRST_S", 10.0)
    with told_if_long(4700):
        time.sleep(0.1)
    said = capfd.readouterr().err
    assert "compiling step" in said and said.endswith("\r\x1b[K")


def test_the_same_line_knows_how_long_it_took_the_last_time(soon, capfd):
    for _ in range(2):
        with told_if_long(4700):
            time.sleep(0.1)
    lines = [line for line in capfd.readouterr().err.splitlines() if "compiling" in line]
    assert re.fullmatch(GOING_ON, lines[0])
    assert re.fullmatch(GOING_ON + ", about 0 s the last time", lines[-1])


def test_a_short_one_is_not_told(capfd):
    with told_if_long(7):
        pass
    assert capfd.readouterr().err == ""


def test_one_that_fails_is_over_too_and_no_estimate(soon, capfd, times):
    with pytest.raises(ValueError, match="no"), told_if_long(7):
        time.sleep(0.2)
        raise ValueError("no")
    assert re.search(r"of 7 operators in \d s, without success", capfd.readouterr().err)
    assert not times


@pytest.mark.parametrize("rank", [Rank(1, 2, 1, 2), Rank(control="somewhere")])
def test_other_ranks_and_those_of_a_launcher_are_silent(rank, soon, capfd, monkeypatch):
    monkeypatch.setattr(world, "current", lambda: rank)
    with told_if_long(7):
        time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_times_are_kept_up_to_a_bound_the_newest_last(times, monkeypatch):
    monkeypatch.setattr(compile_times, "_MOST", 2)
    for rows in (1, 2, 1, 3):
        compile_times.keep("train.py:1", rows, rows + 0.04)
    assert compile_times.last_s("train.py:1", 2) is None
    assert [compile_times.last_s("train.py:1", rows) for rows in (1, 3)] == [1.0, 3.0]
    monkeypatch.setattr(compile_times, "_LEAST_S", 5.0)
    compile_times.keep("train.py:1", 7, 4.9)
    assert compile_times.last_s("train.py:1", 7) is None


def test_times_that_are_damaged_are_none(times):
    for content in (b"{", b"[]", b'{"train.py:1 7": "x"}'):
        times["compile times"] = content
        assert compile_times.last_s("train.py:1", 7) is None


def test_a_step_names_the_line_that_ended_it(soon, capfd):
    steps.sync()  # what tests before have recorded is none of it
    capfd.readouterr()
    x = torch.randn(13, 13).to("xla")
    for _ in range(40):
        x = (x @ x).tanh().sort(0).values
    steps.sync()
    told = capfd.readouterr().err
    assert re.search(PLACE + r"compiling step \d+ \(120 operators\)", told)

"""The sweep of convolutions: thirty-six shapes, three directions each, beside eager torch."""

import json

import pytest
from scripts_as_modules import loaded


@pytest.fixture(scope="module")
def bench():
    return loaded("bench_convolutions")


def test_it_has_thirty_six_shapes_each_once(bench):
    assert len({shape.text for shape in bench.SHAPES}) == len(bench.SHAPES) == 36


def test_each_direction_of_a_shape_has_a_line_with_the_form_that_the_rules_choose(
    bench, monkeypatch, capsys
):
    arguments = ["bench_convolutions", "--match", "32 x 16.2, 4.2 / 2", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", arguments)
    bench.main()
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["direction"] for line in lines] == ["value", "input", "weight"]
    assert [line["chosen"] for line in lines] == ["native", "phases", "native"]
    assert all(line["ms"].keys() >= {line["chosen"], "eager"} for line in lines)
    assert last["directions"] == 3


def test_convolutions_of_groups_are_timed_by_shifts_and_group_by_group(bench, monkeypatch, capsys):
    shape = bench.Shape("groups", 1, 4, 6, 8, 3, 2, 1, 2)
    monkeypatch.setattr(bench, "SHAPES", [shape, shape._replace(stride=1)])
    monkeypatch.setattr("sys.argv", ["bench_convolutions", "--rounds", "1"])
    bench.main()
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert last["directions"] == 6
    assert [line["chosen"] for line in lines[:3]] == ["shifts", "one product", "one product"]
    assert [line["chosen"] for line in lines[3:]] == ["shifts", "shifts", "one product"]
    assert "shifts" not in lines[1]["ms"] and "shifts" in lines[4]["ms"]


def test_more_positions_are_computed_group_by_group(bench):
    shape = bench.Shape("groups", 4, 36, 6, 72, 3, 1, 1, 2)
    assert [d.chosen for d in bench.directions(shape)] == ["by group"] * 3


def test_each_form_of_groups_computes_the_same(bench):
    shape = bench.Shape("groups", 1, 4, 6, 8, 3, 1, 1, 2)
    for direction in bench.directions(shape):
        found = [form(*direction.operands) for form in direction.forms.values()]
        assert len(found) == 3
        assert all(abs(found[0] - other).max() < 1e-4 for other in found[1:])

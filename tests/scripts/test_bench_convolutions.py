"""The sweep of convolutions: thirty shapes, three directions each, beside eager torch."""

import json

import pytest
from scripts_as_modules import loaded


@pytest.fixture(scope="module")
def bench():
    return loaded("bench_convolutions")


def test_it_has_thirty_shapes_each_once(bench):
    assert len({shape.text for shape in bench.SHAPES}) == len(bench.SHAPES) == 30


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

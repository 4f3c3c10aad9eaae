"""The table of docs/benchmarks.md, as `scripts/bench_table.py` makes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripts_as_modules import loaded

ROOT = Path(__file__).parents[2]
made = loaded("bench_table")

MODEL = {"bench": "models", "model": "gpt", "first_three_s": 2.0}
OURS = {**MODEL, "peer": "xdist", "step_ms": 90.0, "quartiles_ms": [80.0, 110.0], "host_ms": 5.0}
EAGER = {**MODEL, "peer": "eager", "step_ms": 100.0, "quartiles_ms": [99.0, 101.0], "host_ms": 9.0}


def run_of(name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    versions = {"torch": "2.13.0", "jax": "0.10.2", "jaxlib": "0.10.2"}
    command = f"scripts/{made.COMMANDS[name]}"
    day = {"date": "2026-11-25", "load before": 0.5, "cores": 2}
    return {"command": command, "versions": versions, "lines": lines, **day}


def row(runs: dict[str, Any], what: str) -> Any:
    return next(one for one in made.rows(runs) if one.aim.what == what)


def test_the_page_shows_the_figures_that_are_kept():
    page = made.PAGE.read_text()
    assert made.page_with(page, made.section(made.kept())) == page


def test_kept_figures_are_of_benchmarks_that_are_there():
    for name, run in made.kept().items():
        assert run["command"] == f"scripts/{made.COMMANDS[name]}"
        assert (ROOT / run["command"].split()[0]).exists()


def test_every_benchmark_has_a_row_and_every_row_a_benchmark():
    assert {aim.of for aim in made.aims()} == set(made.COMMANDS)


def test_no_two_rows_have_one_name():
    names = [aim.what for aim in made.aims()]
    assert len(set(names)) == len(names)


def test_a_step_is_told_beside_its_peers_with_the_spread_of_its_own():
    found = row({"models": run_of("models", [OURS, EAGER])}, "GPT: step / eager").found
    assert found == made.Found(0.9, 0.8, 1.1)


def test_a_peer_that_was_not_there_is_not_measured():
    runs = {"models": run_of("models", [OURS, EAGER])}
    assert row(runs, "GPT: step / JAX by hand").found is None
    assert "| GPT: step / JAX by hand | 1 | not measured |  | `models` |  |" in made.section(runs)


def test_a_row_says_whether_its_aim_is_reached():
    lines = [{"bench": "replay", "step": "replayed", "median_ms": 2.04}]
    told = made.section({"replay": run_of("replay", lines)})
    assert "| 0.4 ms | 2.04 ms | no | `replay` | 2026-11-25 |" in told
    told = made.section({"replay": run_of("replay", [{**lines[0], "median_ms": 0.31}])})
    assert "| 0.4 ms | 0.31 ms | yes |" in told


def test_operators_are_told_by_their_median_and_the_slowest():
    runs = {"ops": run_of("ops", [{"launch_ms": 0.1}, *({"ratio": n / 2} for n in range(1, 8))])}
    assert row(runs, "operators / eager, median").found == made.Found(2.0, 1.0, 3.0)
    assert row(runs, "operators / eager, slowest").found == made.Found(3.5)


def test_the_figure_of_a_line_is_taken_from_one_that_has_it():
    lines = [{"rows_ratio": 0.9}, {"overlap_ratio": 1.01}]
    runs = {"loader": run_of("loader", lines)}
    assert row(runs, "a step beside a loader as slow / alone").found == made.Found(1.01)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8, "0.8"), (0.123456, "0.123"), (1.0, "1"), (2.346, "2.35"), (164, "164")],
)
def test_numbers_have_few_digits(value: float, text: str):
    assert made.number(value) == text


def test_what_stands_outside_the_marks_stays():
    page = f"before\n{made.BEGIN}\nold\n{made.END}\nafter\n"
    assert made.page_with(page, "new") == f"before\n{made.BEGIN}\nnew\n{made.END}\nafter\n"


def test_a_benchmark_without_figures_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "KEPT", tmp_path / "kept.json")
    monkeypatch.setitem(made.COMMANDS, "loader", "bench_loader.py --help")
    ended = CliRunner().invoke(made.main, ["measure", "loader"])
    assert ended.exit_code == 1
    assert "scripts/bench_loader.py --help printed no figures; nothing is kept" in ended.output
    assert not made.KEPT.exists()


def test_what_was_measured_stays_beside_what_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "KEPT", tmp_path / "kept.json")
    made.KEPT.write_text(json.dumps({"ops": {"lines": []}}))
    monkeypatch.setattr(made, "measured", lambda command: {"lines": [{"command": command}]})
    assert CliRunner().invoke(made.main, ["measure", "models"]).exit_code == 0
    assert [*json.loads(made.KEPT.read_text())] == ["models", "ops"]


def test_the_plot_has_every_figure_that_was_found(tmp_path):
    pytest.importorskip("matplotlib", reason="not installed: matplotlib (pip install matplotlib)")
    runs = {"models": run_of("models", [OURS, EAGER])}
    made.draw(made.rows(runs), tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert "GPT: step / eager" in drawn and "ResNet" not in drawn

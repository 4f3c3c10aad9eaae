"""The arithmetic of `scripts/scaling_model.py`, and that the page shows what it says."""

import math
from pathlib import Path

import pytest
from scripts_as_modules import loaded

ROOT = Path(__file__).parents[2]
model = loaded("scaling_model")
COST = {one.name: one.cost for one in model.COSTS}


def test_the_page_has_both_tables_as_they_are_computed() -> None:
    page = (ROOT / "docs/scaling.md").read_text()
    assert model.constants_table() in page
    assert model.costs_table() in page


def test_each_place_is_there() -> None:
    for one in model.COSTS:
        for path in [word.strip(",") for word in one.place.split() if ".py" in word]:
            folders = [ROOT, ROOT / "launcher"]
            assert any((folder / path).exists() for folder in folders), one.place


def test_constants_are_seconds_where_they_are_times() -> None:
    assert model.of("compile_s") == model.CONSTANTS["compile_s"].value
    assert math.isclose(model.of("hello_ms"), model.CONSTANTS["hello_ms"].value / 1e3)
    assert math.isclose(model.of("beat_us"), model.CONSTANTS["beat_us"].value / 1e6)


def test_eight_ranks_are_one_host_and_nine_are_two() -> None:
    assert [model.hosts(ranks) for ranks in (1, 8, 9, 65536)] == [1, 1, 2, 8192]
    assert COST["CPU ranks: a small all-reduce"](8) == 0


def test_costs_are_constants_times_counts() -> None:
    assert math.isclose(COST["rendezvous: meet the hosts"](4096), 512 * model.of("hello_ms"))
    assert math.isclose(
        COST["agreement on a new program"](256), 2 * COST["agreement on a new program"](128)
    )
    beats = COST["beats"](65536) - model.look_s(65536) / model.look_every_s(65536)
    assert math.isclose(beats, 8192 / 2.0 * model.of("beat_us"))


def test_looks_take_a_twentieth_of_the_time_and_come_every_five_seconds_at_least() -> None:
    for ranks in model.RANKS:
        every_s = model.look_every_s(ranks)
        assert model.look_s(ranks) / every_s < 0.05 and every_s <= 5 + model.look_s(ranks)


def test_a_link_carries_twice_what_a_rank_brings_less_what_stays_on_the_host() -> None:
    bytes_s = 2 * model.REDUCED_MB * 31 / 32 / model.LINK_MB_PER_S
    messages_s = 50 * 31 * model.of("wire_us")
    assert math.isclose(model.reduce_s(256), bytes_s + messages_s)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0123, "0.012"), (3.44, "3.4"), (123, "120"), (11900.0, "12,000"), (0.96, "0.96")],
)
def test_numbers_have_two_digits_that_count(value: float, text: str) -> None:
    assert model.number(value) == text


def test_the_plot_shows_every_cost_that_is_a_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="not installed: matplotlib (pip install matplotlib)")
    model.draw(tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert all(one.name in drawn for one in model.COSTS if one.unit == "s")
    assert (ROOT / "docs/scaling.svg").stat().st_size < 100_000

"""scripts/matrix: what it reads from a log, and what it writes into docs/versions.md."""

from datetime import datetime
from pathlib import Path

import pytest
from scripts_as_modules import loaded

ROOT = Path(__file__).resolve().parents[2]
_PAGE = """Before.
<!-- results: written by scripts/matrix -->

|  | oldest | newest |
| --- | --- | --- |
| Python | 3.11 | 3.9 |
| quickstart | ok (9 s, 2001-01-01 01:00) | - |
| core | 1 / 1 / 0 (5 s, 2001-01-01 01:00) | 8 / 0 / 0 (5 s, 2001-01-01 01:00) |

- oldest, core: `tests/a.py::b`: why
- oldest, ops: `tests/c.py::d`

<!-- end of results -->
After.
"""
_NOW = datetime(2026, 1, 2, 3, 4)


@pytest.fixture
def matrix():
    return loaded("matrix_cells")


def test_the_counts_and_reasons_of_a_part_are_read_from_its_log(matrix):
    log = "FAILED tests/a.py::b[x] - ValueError: no\n1 failed, 20 passed, 3 skipped in 9.00s\n"
    outcome = matrix.outcome_of("core", 1, log, 9.0)
    assert outcome.shown == "20 / 1 / 3"
    assert outcome.failures == ["`tests/a.py::b[x]`: ValueError: no"]


def test_the_name_of_a_failed_test_may_hold_spaces(matrix):
    log = "FAILED tests/a.py::b[-True 0] - assert False\nERROR tests/c.py\n2 failed in 9.00s\n"
    outcome = matrix.outcome_of("core", 1, log, 9.0)
    assert outcome.failures == ["`tests/a.py::b[-True 0]`: assert False", "`tests/c.py`"]


def test_a_part_that_ends_without_a_count_is_a_failure(matrix):
    outcome = matrix.outcome_of("core", -11, "Fatal Python error: Segmentation fault\n", 1.0)
    assert outcome.failures == ["core: pytest ended with exit code -11"]


def test_a_part_run_again_takes_the_place_of_its_earlier_result(matrix):
    cell = matrix.tested_cells()[0]
    done = {"core": matrix.Outcome("2 / 0 / 0", [], 7.0)}
    page = matrix.updated(_PAGE, cell, done, _NOW)
    assert page.startswith("Before.\n") and page.endswith("After.\n")
    assert "\n| core | 2 / 0 / 0 (7 s, 2026-01-02 03:04) | - |" in page
    assert "oldest, core:" not in page and "- oldest, ops: `tests/c.py::d`" in page


def test_what_was_not_run_again_keeps_the_time_of_its_run(matrix):
    done = {"core": matrix.Outcome("2 / 0 / 0", [], 7.0)}
    page = matrix.updated(_PAGE, matrix.tested_cells()[0], done, _NOW)
    assert "\n| quickstart | ok (9 s, 2001-01-01 01:00) | - | - | - |\n" in page
    assert "| - | 8 / 0 / 0 (5 s, 2001-01-01 01:00) |\n" in page


def test_another_cell_gets_a_column_of_its_own(matrix):
    cell = matrix.tested_cells()[1]
    done = {"ops": matrix.Outcome("2 / 1 / 0", ["`tests/e.py::f`: why"], 7.0)}
    page = matrix.updated(_PAGE, cell, done, _NOW)
    assert "|  | oldest | pinned | middle | newest |" in page
    assert "\n| ops | - | 2 / 1 / 0 (7 s, 2026-01-02 03:04) | - | - |" in page
    assert "- pinned, ops: `tests/e.py::f`: why" in page


def test_the_releases_of_the_cells_are_those_of_their_file(matrix):
    page = matrix.updated(_PAGE, matrix.tested_cells()[0], {}, _NOW)
    for word in ("Python", "torch", "jax"):
        found = [getattr(cell, word.lower()) for cell in matrix.tested_cells()]
        assert f"\n| {word} | {' | '.join(found)} |\n" in page


def test_a_page_written_twice_stays_as_it_is(matrix):
    cell = matrix.tested_cells()[1]
    done = {"ops": matrix.Outcome("2 / 0 / 0", [], 7.0)}
    once = matrix.updated(_PAGE, cell, done, _NOW)
    assert matrix.updated(once, cell, done, _NOW) == once


def test_the_rest_is_what_no_other_part_runs(matrix):
    given = matrix.paths("rest")
    assert given[:3] == ["tests/xdist", "tests/torch_xla", "tests/loaders"]
    assert "--ignore=tests/xdist/core" in given and "--ignore=tests/xdist/kernels" in given
    assert matrix.paths("core") == ["tests/xdist/core"]


def test_every_folder_of_tests_that_asks_torch_or_jax_is_in_one_part(matrix):
    found = {p for p in (ROOT / "tests").iterdir() if p.is_dir() and any(p.rglob("test_*.py"))}
    roots = {Path(path).parts[1] for given in matrix.PARTS.values() for path in given}
    # The scripts are of one machine, not of a release.
    assert {path.name for path in found} - roots == {"scripts"}
    for path in (path for given in matrix.PARTS.values() for path in given):
        assert (ROOT / path).is_dir(), path


def test_a_cells_pins_are_those_of_constraints_with_its_torch_and_jax(matrix):
    pins = matrix.constraints_of(matrix.tested_cells()[0]).split()
    assert "torch==2.9.1" in pins and "jax==0.10.0" in pins
    assert not any(pin.startswith("jaxlib") for pin in pins)
    assert any(pin.startswith("pytest==") for pin in pins)


def test_a_python_that_is_nowhere_is_named(matrix):
    with pytest.raises(SystemExit, match=r"no Python 3\.99 on PATH, in pyenv or in uv"):
        matrix.interpreter("3.99")


@pytest.mark.parametrize("words", [["noone"], ["--parts", "nothing"]])
def test_an_unknown_cell_or_part_is_refused_with_the_known_ones(matrix, words, capsys):
    with pytest.raises(SystemExit):
        matrix.main(words)
    assert "there are" in capsys.readouterr().err


def test_the_page_has_a_place_for_the_results(matrix):
    page = (ROOT / "docs" / "versions.md").read_text()
    assert page.count(matrix._BEGIN) == page.count(matrix._END) == 1

"""scripts/matrix: what it reads from a log, and what it writes into docs/versions.md."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PAGE = """Before.
<!-- results: written by scripts/matrix -->

| cell | Python | torch | jax | run on | quickstart | core | ops | collectives | c10d | launcher |
|---|---|---|---|---|---|---|---|---|---|---|
| oldest | 3.11 | 2.9.1 | 0.10.0 | 2001-01-01 | ok (9 s) | 1 / 1 / 0 (5 s) | - | - | - | - |

- oldest, core: `tests/a.py::b`: why
- oldest, ops: `tests/c.py::d`

<!-- end of results -->
After.
"""


@pytest.fixture
def matrix():
    path = ROOT / "scripts" / "matrix_cells.py"
    spec = importlib.util.spec_from_file_location("matrix_cells", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    page = matrix.updated(_PAGE, cell, done)
    assert page.startswith("Before.\n") and page.endswith("After.\n")
    assert "| ok (9 s) | 2 / 0 / 0 (7 s) | - |" in page and "2001" not in page
    assert "oldest, core:" not in page and "- oldest, ops: `tests/c.py::d`" in page


def test_another_cell_gets_a_row_of_its_own(matrix):
    cell = matrix.tested_cells()[1]
    done = {"ops": matrix.Outcome("2 / 1 / 0", ["`tests/e.py::f`: why"], 7.0)}
    page = matrix.updated(_PAGE, cell, done)
    assert page.count("\n| oldest |") == 1
    assert "| - | - | 2 / 1 / 0 (7 s) | - | - | - |" in page
    assert "- pinned, ops: `tests/e.py::f`: why" in page


def test_a_page_written_twice_stays_as_it_is(matrix):
    cell = matrix.tested_cells()[1]
    done = {"ops": matrix.Outcome("2 / 0 / 0", [], 7.0)}
    once = matrix.updated(_PAGE, cell, done)
    assert matrix.updated(once, cell, done) == once


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

"""The table at the end of docs/failures.md names tests that exist, and every one of the faults."""

import ast
from pathlib import Path

import fault_table

ROWS = fault_table.rows((fault_table.ROOT / "docs/failures.md").read_text())
# Each of their tests is one of a fault.
FILES = (
    *("test_device_faults.py", "test_out_of_memory.py", "test_stops.py"),
    "pods/test_host_faults.py",
)
FEWEST = 25


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in names if name.startswith("test_")}


def test_every_fault_has_a_test_that_exists() -> None:
    assert len(ROWS) >= FEWEST, "the table is not read"
    for row in ROWS:
        assert row.tests, row.fault
        for file, name in row.tests:
            assert name in names_in(fault_table.FOLDER / file), f"{row.fault}: no {file}::{name}"


def test_every_test_of_a_fault_stands_in_the_table() -> None:
    named = {test for row in ROWS for test in row.tests}
    for file in FILES:
        found = {(file, name) for name in names_in(fault_table.FOLDER / file)}
        assert found <= named, found - named


def test_a_row_names_hardware_in_brackets() -> None:
    table = (
        "| a GPU dies (needs a GPU) | `a/test_b.py::test_c` |\n| a (b) | `test_d.py::test_e` |\n"
    )
    with_gpu, without = fault_table.rows(table)
    assert with_gpu.needs_hardware and not without.needs_hardware
    assert with_gpu.tests == (("a/test_b.py", "test_c"),)

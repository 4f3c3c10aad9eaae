"""The table at the end of docs/failures.md names tests that exist, and every one of the design."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
DOC = (FOLDER.parents[1] / "docs/failures.md").read_text()
ROWS = re.findall(r"^\| (.+) \| (`[\w/]*test_.+`) \|$", DOC, re.MULTILINE)
FAULTS_OF_ONE_HOST = 23


def test_every_fault_has_a_test_that_exists() -> None:
    assert len(ROWS) == FAULTS_OF_ONE_HOST
    for fault, tests in ROWS:
        named = re.findall(r"`([\w/]*test_\w+\.py)::(test_\w+)`", tests)
        assert len(named) == tests.count("`") // 2, fault
        for file, name in named:
            tree = ast.parse((FOLDER / file).read_text())
            found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in found, f"{fault}: {file} has no {name}"


def test_every_test_of_a_fault_stands_in_the_table() -> None:
    named = " ".join(tests for _, tests in ROWS)
    for file in ("test_device_faults.py", "test_stops.py"):
        tree = ast.parse((FOLDER / file).read_text())
        names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
        missing = [n for n in names if n.startswith("test_") and f"{file}::{n}" not in named]
        assert missing == [], file

"""The table of docs/failures.md: which tests of the launcher prove which fault.

conftest.py marks these tests `fault`: continuous integration runs them however long they take, and
none of them may be skipped, but where its row says which hardware it needs: "(needs a GPU)".
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "launcher"
_ROW = re.compile(r"^\| (?P<fault>.+) \| (?P<tests>`[\w/]*test_\w+\.py::.+`) \|$", re.MULTILINE)
_TEST = re.compile(r"`([\w/]*test_\w+\.py)::(test_\w+)`")
_HARDWARE = re.compile(r"\(needs .+\)")


@dataclass(frozen=True, slots=True)
class Row:
    """One fault, and its tests as (file below tests/launcher, name)."""

    fault: str
    tests: tuple[tuple[str, str], ...]

    @property
    def needs_hardware(self) -> bool:
        return _HARDWARE.search(self.fault) is not None


def rows(text: str) -> list[Row]:
    """The rows of the table in a document."""
    return [
        Row(match["fault"], tuple(_TEST.findall(match["tests"]))) for match in _ROW.finditer(text)
    ]


def faults() -> dict[tuple[Path, str], Row]:
    """The row of every test that proves one, by its file and its name."""
    found = rows((ROOT / "docs" / "failures.md").read_text())
    return {(FOLDER / file, name): row for row in found for file, name in row.tests}

"""docs/launching.md says what the launcher's tables say."""

from pathlib import Path

import pytest

from torch_xdist.launcher.facts import errors, settings

DOC = (Path(__file__).parents[2] / "docs/launching.md").read_text()


@pytest.mark.parametrize("row", settings.TIMEOUTS, ids=lambda row: row.field)
def test_every_timeout_stands_in_the_doc(row):
    default = settings.show_seconds(row.default_s)
    assert f"| {row.meaning} | {default} | `{row.flag}` | `{row.variable}` |" in DOC


@pytest.mark.parametrize(("code", "meaning"), errors.EXIT_CODES)
def test_every_exit_code_stands_in_the_doc(code, meaning):
    assert f"| {code} | {meaning} |" in DOC


@pytest.mark.parametrize("variable", settings.VARIABLES, ids=lambda variable: variable.name)
def test_every_variable_stands_in_the_doc(variable):
    names = ", ".join(f"`{name}`" for name in variable.name.split(", "))
    assert f"| {names} | {variable.meaning} |" in DOC

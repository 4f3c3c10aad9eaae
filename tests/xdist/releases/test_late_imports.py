"""Modules that are completed when somebody imports them, and not before."""

import importlib.util
import sys

import pytest

from torch_xdist.releases import late_imports


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The file of a module `completed_late`, which nobody imported, and what was completed."""
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    completed = []
    late_imports.when_imported("completed_late", completed.append)
    file = tmp_path / "completed_late.py"
    file.write_text("size = 3")
    yield file, completed
    sys.meta_path[:] = before
    sys.modules.pop("completed_late", None)


def test_a_module_is_completed_once_when_it_is_imported(module):
    _, completed = module
    late_imports.when_imported("completed_late", completed.append)
    assert late_imports.is_awaited("completed_late") and completed == []
    import completed_late

    assert completed == [completed_late] and completed_late.size == 3
    assert not late_imports.is_awaited("completed_late")
    late_imports.when_imported("completed_late", completed.append)
    assert completed == [completed_late] * 2


def test_a_module_that_was_only_looked_for_is_completed_later(module):
    _, completed = module
    for _ in range(2):
        assert importlib.util.find_spec("completed_late").origin is not None
    assert late_imports.is_awaited("completed_late") and completed == []
    import completed_late

    assert completed == [completed_late]


def test_a_module_whose_import_failed_is_completed_when_it_succeeds(module):
    file, completed = module
    file.write_text("raise ImportError('not yet')")
    with pytest.raises(ImportError, match="not yet"):
        import completed_late
    assert completed == []
    file.write_text("size = 4  # longer, so that it is compiled again")
    import completed_late

    assert completed == [completed_late] and completed_late.size == 4


def test_a_module_that_is_nowhere_stays_so(module):
    late_imports.when_imported("completed_nowhere", module[1].append)
    assert importlib.util.find_spec("completed_nowhere") is None

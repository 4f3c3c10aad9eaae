"""What tests of the core ask for by variables and switches, and take back."""

import pytest

import torch_xla
from torch_xdist import settings


@pytest.fixture
def ask(monkeypatch):
    """Set variables for the test; nothing pending before."""

    def with_variables(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        settings.reread()

    torch_xla.sync()
    yield with_variables
    monkeypatch.undo()
    settings.reread()


@pytest.fixture
def noting():
    """Rows are noted where they are recorded; nothing pending before and after."""
    torch_xla.sync()
    torch_xla._XLAC._set_ir_debug(True)
    yield
    torch_xla._XLAC._set_ir_debug(False)
    torch_xla.sync()

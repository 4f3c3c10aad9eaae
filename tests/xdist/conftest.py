"""What tests of all parts of the device ask for."""

from collections.abc import Callable

import pytest

import torch_xla
from torch_xdist.core.devices import device as devices_here


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`choose(reads_once=True)`: the device of this process does so, as another platform would.

    Until the end of the test, or its `monkeypatch.undo()`.
    """

    def with_choices(**changes: bool) -> None:
        torch_xla.device()
        here = devices_here.device_at(0)
        monkeypatch.setattr(here, "choices", here.choices._replace(**changes))

    return with_choices

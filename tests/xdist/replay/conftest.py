"""What the tests of replays begin with."""

import pytest

import torch_xla
from torch_xdist import metrics


@pytest.fixture
def counted_from_zero():
    """Nothing is pending, and every counter is at zero."""
    torch_xla.sync()
    metrics.clear_all()

"""What the loader tests share: a device that copies, and the check that no thread is left."""

import gc
import time

import pytest

from torch_xdist.loaders import threads


@pytest.fixture(autouse=True)
def no_thread_left():
    """Every test must let its threads end by itself, within a few seconds."""
    yield
    if not ended(1):
        gc.collect()
        assert ended(10)


def ended(timeout_s):
    """Whether all threads of the loaders end within a time."""
    deadline_s = time.monotonic() + timeout_s
    while threads.live() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return threads.live() == []


@pytest.fixture
def cuts_made(monkeypatch):
    """The list of cuts that the loaders asked for; none is made."""
    made = []
    monkeypatch.setattr(
        "torch_xdist.core.devices.steps.end_step", lambda *_, **__: made.append(time.monotonic())
    )
    return made

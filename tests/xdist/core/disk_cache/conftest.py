"""Folders as the cache has them: descriptors, closed after the test."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torch_xdist import metrics


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """`opened()`: a descriptor of the test's folder."""
    made = []

    def begin() -> int:
        made.append(os.open(tmp_path, os.O_RDONLY))
        return made[-1]

    yield begin
    for folder in made:
        os.close(folder)


@pytest.fixture
def counted() -> Callable[[str], int]:
    """`counted(name)`: what a counter has."""
    return lambda name: metrics.counter_value(name) or 0

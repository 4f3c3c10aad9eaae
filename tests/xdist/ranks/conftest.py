"""Worlds of real ranks, one per file of tests."""

from collections.abc import Iterator

import pytest
from device_ranks import DeviceRanks


@pytest.fixture(scope="module")
def two() -> Iterator[DeviceRanks]:
    with DeviceRanks(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def three() -> Iterator[DeviceRanks]:
    with DeviceRanks(3) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four() -> Iterator[DeviceRanks]:
    with DeviceRanks(4) as ranks:
        yield ranks

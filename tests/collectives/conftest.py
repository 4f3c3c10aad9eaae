"""One pool of eight rank processes for the tests of the collectives."""

from collections.abc import Iterator

import pytest
from rank_pool import RankPool


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    with RankPool(8) as ranks:
        yield ranks

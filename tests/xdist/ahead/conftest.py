"""The TPU compiler needs libtpu; where it is missing these tests say so."""

import pytest

from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.topology import why_missing


def pytest_collection_modifyitems(items):
    missing = why_missing()
    if missing:
        for item in items:
            if "tests/xdist/ahead" in str(item.path) and "compiler" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def compiler():
    with Compiler(limit_s=120) as found:
        yield found

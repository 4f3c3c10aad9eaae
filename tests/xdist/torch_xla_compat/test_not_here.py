"""What is left out of torch_xla: each says what to use instead."""

import importlib
import re

import pytest

from torch_xdist.errors import NotHereError
from torch_xdist.surface.compare import exceptions
from torch_xdist.torch_xla_compat.not_here import NOT_HERE


@pytest.mark.parametrize("module", NOT_HERE)
def test_a_module_that_is_left_out_says_what_to_use(module):
    with pytest.raises(NotHereError, match=re.escape(f"{module} is not here: {NOT_HERE[module]}")):
        importlib.import_module(module)


def test_few_are_left_out_and_the_surface_lists_them():
    rows = list(exceptions())
    assert len(rows) <= 40
    assert {(row.module, row.how) for row in rows} == set(NOT_HERE.items())
    assert all("; " in why for why in NOT_HERE.values()), "each says what to use instead"

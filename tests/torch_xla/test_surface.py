"""How much of torch_xla 2.9.0's surface is here: no name is lost, and a new one is counted."""

import warnings
from collections import Counter

from torch_xdist.surface.compare import THERE, compare, names


def test_no_name_is_lost():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = Counter(row.status for row in compare(names()))
    # What differs and what is absent may only become less.
    assert counts == {THERE: 846}

"""What would make a program fit, by its facts."""

import pytest

from torch_xdist.launcher.rehearsal import remedies
from torch_xdist.launcher.rehearsal.remedies import Remedy

GIB = 1 << 30


def program(*, state=4.0, batch=1.0, temporaries=16.0, held=1.0, alike=16):
    """A step of some GiB whose states are written in place."""
    return {
        "outcome": "ok",
        "words": "",
        "bytes": {
            "arguments": (state + batch) * GIB, "results": state * GIB, "aliased": state * GIB,
            "temporaries": temporaries * GIB, "held": held * GIB, "state": state * GIB,
            "batch": batch * GIB,
        },
        "largest": [{"count": 2}, {"count": alike}],
    }  # fmt: skip


def test_each_remedy_is_the_mildest_that_fits():
    found = remedies.of_program(program(), 15 * GIB, ranks=8)
    assert [one.what.split(" (")[0] for one in found] == [
        "a batch of 1/2",
        "FSDP over 8 ranks",
        "torch_xla.utils.checkpoint around each of 16 alike layers",
    ]
    # 22 GiB: half of 16 goes; 7/8 of 4; of 16 layers 8 are kept.
    assert [one.needed_bytes / GIB for one in found] == [14.0, 18.5, 14.0]


def test_where_none_fits_the_strongest_is_told():
    found = remedies.of_program(program(state=20.0), 15 * GIB, ranks=1)
    assert found[0] == Remedy("a batch of 1/1024", pytest.approx(22 * GIB + 16 * GIB / 1024))


def test_what_there_is_nothing_of_is_no_remedy():
    assert remedies.of_program(program(state=0.0, temporaries=0.0, alike=1), GIB, 8) == []


def test_a_program_that_the_compiler_refuses_has_its_words_for_its_size():
    refused = program(state=0.0, batch=0.0, held=0.0) | {
        "outcome": "refused",
        "words": "the total memory required for HLO temporaries (32.00G) exceeds available HBM",
    }
    [batch, _] = remedies.of_program(refused, 15 * GIB, ranks=1)
    assert batch == Remedy("a batch of 1/4", 8 * GIB)

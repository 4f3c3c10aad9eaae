"""The roofline of a step, from facts."""

import pytest

from torch_xdist.launcher.rehearsal import estimate
from torch_xdist.launcher.rehearsal.chips import Chip

CHIP = Chip(flops=100.0, hbm_bytes=2000, usable_bytes=1000, hbm_rate=10.0, link_rate=5.0)


def program(**more):
    base = {
        "outcome": "ok", "words": "", "flops": 0.0, "accessed_bytes": 0.0, "collectives": [],
        "runs": {"0": 1}, "bytes": {"held": 0},
    }  # fmt: skip
    return {**base, **more}


@pytest.mark.parametrize(
    ("found", "seconds", "by"),
    [
        (program(flops=400.0, accessed_bytes=30.0), 4.0, "compute"),
        (program(flops=400.0, accessed_bytes=50.0), 5.0, "HBM"),
        (
            program(
                flops=400.0,
                collectives=[{"kind": "all-reduce", "bytes": 10, "count": 2, "ranks": 4}],
            ),
            6.0,
            "ICI",
        ),
    ],
)
def test_a_program_is_bound_by_what_takes_longest(found, seconds, by):
    bound = estimate.bound(found, CHIP)
    assert bound.seconds == pytest.approx(seconds) and bound.by == by


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("all-reduce", 14), ("all-gather", 7), ("reduce-scatter", 7), ("collective-permute", 8)],
)
def test_a_rank_sends_its_share(kind, sent):
    assert estimate.sent_bytes({"kind": kind, "bytes": 8, "count": 1, "ranks": 8}) == sent


def test_aliased_results_need_no_memory_of_their_own():
    sizes = {"arguments": 50, "results": 40, "aliased": 30, "temporaries": 5, "held": 7}
    assert estimate.needed_bytes(program(bytes=sizes)) == 72


def test_what_is_too_much_is_in_the_compilers_words():
    words = (
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required"
        " for HLO temporaries (44.00G) exceeds available HBM (15.75G)."
    )
    found = program(outcome="refused", words=words)
    assert estimate.needed_bytes(found) == 44 * 2**30
    assert not estimate.is_refused(found)
    other = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 19.2G of 15.75G hbm."
    assert estimate.needed_bytes(program(words=other)) == pytest.approx(19.2 * 2**30)
    assert estimate.is_refused(program(outcome="refused", words="UNIMPLEMENTED: c128"))


def test_a_step_is_what_ran_in_the_last_one():
    first = program(flops=1000.0, runs={"0": 1}, bytes={"arguments": 900, "held": 0})
    second = program(flops=200.0, runs={"1": 1, "2": 2}, bytes={"arguments": 300, "held": 0})
    job = estimate.of_job([first, second], CHIP)
    assert job.step == [(1, 2)] and job.flops == 400.0
    assert job.bound.seconds == pytest.approx(4.0) and job.mfu == pytest.approx(1.0)
    assert job.needed_bytes == 900 and job.worst == 0 and job.fits


def test_a_job_fits_where_every_program_does():
    large = program(bytes={"arguments": 900, "held": 200})
    assert not estimate.of_job([program(), large], CHIP).fits

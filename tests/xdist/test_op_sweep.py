"""Every operator of torch's database on the device, against CPU torch.

Here float32, one sample each, forward and backward; `scripts/test --all` takes more samples, the
in-place and out= forms and the other dtypes. What `sweep_expected.py` lists must fail: when it
starts to pass, its entry has to go.
"""

import warnings

import pytest
import torch
from sweep import check, full_name, operators
from sweep_expected import EXPECTED, reason

SHARDS = 8
LONG_DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64,
    torch.int32, torch.uint8, torch.bool,
]  # fmt: skip
# The share of operators that must pass in each dtype, and how many may use the CPU.
NEEDED = 0.99
THROUGH_THE_CPU = 25


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_float32_operators_agree_with_the_cpu(shard):
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operators(torch.float32, shard=f"{shard}/{SHARDS}"):
            outcome = check(op, torch.float32, 1, every_form=False)
            name = full_name(op)
            expected = reason(name, torch.float32)
            if outcome.failures and expected is None:
                wrong.append(f"{name}: {outcome.failures[0]}")
            if not outcome.failures and outcome.samples and expected is not None:
                wrong.append(f"{name} passes now; take it out of EXPECTED ({expected})")
    assert not wrong, "\n".join(wrong)


def test_at_most_ten_operators_are_expected_to_fail():
    assert len(EXPECTED) <= 10


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dtype", LONG_DTYPES, ids=str)
def test_nearly_every_operator_agrees_in_every_dtype_and_form(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = {full_name(op): check(op, dtype, 3) for op in operators(dtype)}
    ran = {name: outcome for name, outcome in outcomes.items() if outcome.samples}
    passing = [n for n, o in ran.items() if not o.failures and reason(n, dtype) is not None]
    assert not passing, f"{passing} pass now; take them out of EXPECTED"
    failed = {n: o.failures[0] for n, o in ran.items() if o.failures and reason(n, dtype) is None}
    allowed = 0 if dtype is torch.float32 else (1 - NEEDED) * len(ran)
    assert len(failed) <= allowed, "\n".join(f"{n}: {f}" for n, f in failed.items())
    assert sum(bool(outcome.fallbacks) for outcome in ran.values()) <= THROUGH_THE_CPU

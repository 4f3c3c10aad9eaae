"""Every operator of torch's database on the device, float32, forward and backward.

One sample each here; `scripts/test --all` takes more samples and the other dtypes. An operator
listed in `EXPECTED` must fail: when it starts to pass, its entry has to go.
"""

import warnings

import pytest
import torch
from sweep import check, full_name, operators

SHARDS = 8
# What fails, by name, and why.
EXPECTED = {
    "sparse.sampled_addmm": "sparse layouts do not exist on the device",
    "sparse.mm.reduce": "sparse layouts do not exist on the device",
    "chalf": "JAX has no complex32",
}
LONG_DTYPES = [
    torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.int32,
    torch.uint8, torch.bool,
]  # fmt: skip
# Shares of operators that must pass in the other dtypes.
NEEDED = 0.99


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_float32_operators_agree_with_the_cpu(shard):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = []
        for op in operators(torch.float32, shard=f"{shard}/{SHARDS}"):
            outcome = check(op, torch.float32, 1)
            name = full_name(op)
            if outcome.failures and name not in EXPECTED:
                wrong.append(f"{name}: {outcome.failures[0]}")
            if not outcome.failures and name in EXPECTED:
                wrong.append(f"{name} passes now; take it out of EXPECTED ({EXPECTED[name]})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dtype", [torch.float32, *LONG_DTYPES], ids=str)
def test_nearly_every_operator_agrees_in_every_dtype(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = {full_name(op): check(op, dtype, 3) for op in operators(dtype)}
    failed = {n: o.failures[0] for n, o in outcomes.items() if o.failures and n not in EXPECTED}
    assert len(failed) <= (1 - NEEDED) * len(outcomes), "\n".join(
        f"{n}: {f}" for n, f in failed.items()
    )

"""Python numbers that a tensor's dtype does not hold: refused, or told, in torch's words."""

import math

import pytest
import torch
import torch.nn.functional as F

from torch_xdist.ops import number_ranges

U8, I32, HALF, BF16, F32 = torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float32
BEYOND = {U8: 300, torch.int8: -300, I32: 2**40}
TO_INFINITY = {HALF: 1e6, BF16: 1e300, F32: -1e300}


def first_of(x):
    return torch.tensor([0], device=x.device)


def mask_of(x):
    return torch.ones(3, dtype=torch.bool, device=x.device)


CONVERTED = {
    "full": lambda x, number: torch.full(x.shape, number, dtype=x.dtype, device=x.device),
    "full_like": torch.full_like,
    "new_full": lambda x, number: x.new_full(x.shape, number),
    "fill_": lambda x, number: x.fill_(number),
    "fill_ of a view": lambda x, number: x[0].fill_(number),
    "masked_fill": lambda x, number: x.masked_fill(mask_of(x), number),
    "masked_fill_": lambda x, number: x.masked_fill_(mask_of(x), number),
    "index_fill": lambda x, number: x.index_fill(0, first_of(x), number),
    "scatter": lambda x, number: x.scatter(0, first_of(x)[None], number),
    "pad": lambda x, number: F.pad(x, (1, 1), value=number),
    "clamp": lambda x, number: x.clamp(0, number),
    "clamp_min_": lambda x, number: x.clamp_min_(number),
    "a factor of what is added": lambda x, number: torch.add(x, x, alpha=number),
    "threshold": lambda x, number: F.threshold(x, 0, number),
}


def outcome(call, dtype, number, device):
    try:
        return call(torch.zeros(2, 3, dtype=dtype, device=device), number).cpu().tolist()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("dtype", BEYOND, ids=str)
@pytest.mark.parametrize("name", CONVERTED)
def test_a_number_that_the_dtype_does_not_hold_is_refused_as_on_the_cpu(name, dtype):
    found = outcome(CONVERTED[name], dtype, BEYOND[dtype], "xla")
    assert "cannot be converted" in found
    assert found == outcome(CONVERTED[name], dtype, BEYOND[dtype], "cpu")


@pytest.mark.parametrize("dtype", TO_INFINITY, ids=str)
@pytest.mark.parametrize("name", CONVERTED)
def test_where_there_are_infinities_it_becomes_one_with_a_warning_in_torchs_words(name, dtype):
    call, number = CONVERTED[name], TO_INFINITY[dtype]
    on_cpu = outcome(call, dtype, number, "cpu")
    if isinstance(on_cpu, list):  # a threshold in opmath, for example
        return
    # It is told once for each kind of call, and some of these call the same operator.
    x = torch.zeros(3 + list(CONVERTED).index(name), 3, dtype=dtype, device="xla")
    with pytest.warns(UserWarning, match="becomes an infinity, as torch_xla") as told:
        call(x, number)
    assert on_cpu in str(told[0].message) and __file__ in str(told[0].message)


def test_the_least_float_of_another_dtype_is_told_once():
    scores = torch.zeros(2, 5, 3, dtype=HALF, device="xla")
    with pytest.warns(UserWarning, match="type c10::Half without overflow") as told:
        for _ in range(2):
            filled = scores.masked_fill(mask_of(scores), torch.finfo(F32).min)
    assert len(told) == 1 and filled.max().item() == -math.inf
    filled = scores.masked_fill(mask_of(scores), torch.finfo(HALF).min)
    assert filled.min().item() == torch.finfo(HALF).min


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [HALF, F32, I32], ids=str)
def test_what_is_not_finite_is_held_by_floats_alone(dtype, number):
    found = [
        outcome(lambda x, n: x.fill_(n).nan_to_num(5.0), dtype, number, device)
        for device in ("xla", "cpu")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("number", [-2, -255])
def test_a_negative_number_wraps_in_bytes(number):
    assert outcome(torch.Tensor.fill_, U8, number, "xla") == [[256 + number] * 3] * 2


def test_a_number_that_fits_is_refused_neither_before_nor_after_one_that_does_not():
    x = torch.zeros(2, 3, dtype=I32, device="xla")
    for number in (70.5, 7e10, 71.5):
        if number < 100:
            assert x.masked_fill(mask_of(x), number).max().item() == int(number)
        else:
            with pytest.raises(RuntimeError, match="without overflow"):
                x.masked_fill(mask_of(x), number)


def test_operators_that_let_numbers_wrap_still_do():
    for number in (300, 301):
        found = outcome(torch.add, U8, number, "xla")
        assert found == outcome(torch.add, U8, number, "cpu") == [[number - 256] * 3] * 2


def test_a_refused_number_leaves_nothing_recorded():
    x = torch.ones(2, 3, dtype=U8, device="xla")
    with pytest.raises(RuntimeError, match="without overflow"):
        x.fill_(1e6)
    assert x.tolist() == [[1] * 3] * 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64, torch.complex128], ids=str)
def test_each_finite_number_fits_the_widest_dtypes_and_bools(dtype):
    assert number_ranges.fit([1e308, -(2**62), 0], dtype)


def test_complex_numbers_have_the_limits_of_their_parts():
    assert not number_ranges.fit([1e300], torch.complex64)
    assert number_ranges.fit([1e30, None, [1e300], True], torch.complex64)

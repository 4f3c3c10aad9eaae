"""Result dtypes are CPU torch's, for tensors, 0-d tensors and Python numbers of every kind."""

import itertools
import operator

import pytest
import torch
import torch.nn.functional as F

import torch_xla
from torch_xdist import platforms

DTYPES = [
    torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64,
]  # fmt: skip
NUMBERS = [True, 2, 0.5, 1 + 2j]
QUICK = [operator.add, operator.truediv]
LONG = [
    operator.floordiv, operator.mod, operator.pow, operator.and_, operator.lt, operator.mul,
    torch.fmod, torch.atan2,
]  # fmt: skip
OPERATORS = [*QUICK, *(pytest.param(f, marks=pytest.mark.long) for f in LONG)]


def result_dtype(function, *operands):
    """The dtype of a call's result; None where CPU torch has no kernel for the operands."""
    try:
        return function(*operands).dtype
    except (RuntimeError, TypeError):
        return None


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_a_tensor_and_another_or_a_0d_one_promote_as_on_the_cpu(function):
    wrong = []
    for one, other in itertools.product(DTYPES, DTYPES):
        for shape in ((2,), ()):
            x, y = torch.ones(2, dtype=one), torch.ones(shape, dtype=other)
            expected = result_dtype(function, x, y)
            got = expected and function(x.to("xla"), y.to("xla")).dtype
            if got != expected:
                wrong.append(f"{one} with {other} {shape}: {got} instead of {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("function", OPERATORS[:-2], ids=lambda f: f.__name__)
def test_a_tensor_and_a_python_number_promote_as_on_the_cpu(function):
    wrong = []
    for dtype, number in itertools.product(DTYPES, NUMBERS):
        for shape in ((2,), ()):
            x = torch.ones(shape, dtype=dtype)
            for operands in ((x, number), (number, x)):
                expected = result_dtype(function, *operands)
                there = [o.to("xla") if o is x else o for o in operands]
                if expected and function(*there).dtype != expected:
                    wrong.append(f"{operands}: not {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "name", ["sum", "prod", "cumsum", "cumprod", "any", "argmax", "nansum", "mean", "std"]
)
def test_reductions_have_the_dtypes_of_the_cpu(name):
    function = getattr(torch, name)
    for dtype in DTYPES:
        x = torch.tensor([[1, 0], [1, 1]]).to(dtype)
        expected = result_dtype(function, x, 1)
        assert expected is None or function(x.to("xla"), 1).dtype is expected, dtype


def test_bool_with_byte_int32_with_a_0d_int64_and_integer_division_have_torchs_values():
    flags, bytes_ = torch.tensor([True, False]), torch.tensor([3, 2], dtype=torch.uint8)
    whole, zero_d = torch.tensor([-7, 7], dtype=torch.int32), torch.tensor(2)
    for a, b, function in [
        (flags, bytes_, operator.and_),
        (whole, zero_d, operator.add),
        (whole, zero_d, operator.floordiv),
        (whole, zero_d, operator.truediv),
        (whole, zero_d, operator.mod),
    ]:
        expected = function(a, b)
        got = function(a.to("xla"), b.to("xla"))
        assert got.dtype is expected.dtype
        assert got.tolist() == expected.tolist()
    assert flags.to("xla").sum().cpu().dtype is torch.int64


def test_a_power_of_bools_by_a_bool_is_bool():
    bools = torch.tensor([True, False])
    for exponent in (True, False):
        power = torch.pow(bools.to("xla"), exponent)
        assert power.dtype is torch.bool
        assert torch.equal(power.cpu(), torch.pow(bools, exponent))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x / 2,
        lambda x: x * 0.5,
        lambda x: x.float().double().long() + 1.5,
        lambda x: torch.true_divide(x, x + 1),
        lambda x: x.sqrt(),
        lambda x: torch.zeros(2, device=x.device) + x,
        lambda x: torch.full((2,), 1.5, device=x.device),
        lambda x: torch.linspace(0, 1, 3, device=x.device),
        lambda x: torch.where(x > 1, 1.0, 2.0),
    ],
)
def test_results_follow_torchs_default_dtype_whatever_it_was_before(call):
    check_under(call, (torch.float32, torch.float64, torch.bfloat16, torch.float32))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch._foreach_div([torch.ones(2, device=x.device), x], 2)[1],
        lambda x: x + 16777214 == 16777216.0,
        lambda x: x + 16777214 <= 16777216.0,
    ],
    ids=["foreach", "eq", "le"],
)
def test_lists_and_comparisons_follow_torchs_default_dtype(call):
    check_under(call, (torch.float32, torch.float64, torch.float32))


def check_under(call, dtypes):
    """A call on integers gives what it gives on the CPU, under one default dtype after another."""
    on_device = torch.tensor([3, 4]).to("xla")
    found, wanted = [], []
    try:
        for dtype in dtypes:
            torch.set_default_dtype(dtype)
            found.append(call(on_device).cpu())
            wanted.append(call(torch.tensor([3, 4])))
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, wanted):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_halves_are_those_of_float32_rounded(dtype):
    torch.manual_seed(0)
    x = (torch.randn(5000) * torch.logspace(-6, 3, 5000)).to(dtype)
    y = torch.randn(5000).to(dtype)
    product = x.to("xla") * y.to("xla")
    assert "f32" not in torch_xla._XLAC._get_xla_tensors_hlo([product])
    assert torch.equal(product.cpu(), x * y)


HALVES = [torch.bfloat16, torch.float16]
NO_LESS = {
    "add": torch.add,
    "sub": torch.sub,
    "relu": lambda x, y: F.relu(x) * y,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda x, y: torch.where(torch.arange(len(x), device=x.device) % 3 == 0, x, y),
    "neg and abs": lambda x, y: (-x) * abs(y),
    "relu's gradient": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0),
}
LESS = {
    "another dtype": lambda x, y: x.float() + y,
    "a weight": lambda x, y: torch.add(x, y, alpha=0.1),
    "a number": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.1),
    "a quotient": torch.div,
}


def all_pairs(dtype):
    """Every 97th number of the dtype with every 101st, nan and infinities among them."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    # XLA's programs for CPUs have no subnormal float32.
    bits = bits[~(bits.abs() < 2 * torch.finfo(dtype).tiny)]
    return [
        part.reshape(-1).contiguous()
        for part in torch.meshgrid(bits[::97], bits[::101], indexing="ij")
    ]


@pytest.fixture
def halves_stay(choose):
    choose(keeps_halves=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", NO_LESS)
def test_halves_that_stay_halves_give_what_torch_gives(halves_stay, name, dtype):
    function = NO_LESS[name]
    x, y = all_pairs(dtype)
    expected, got = function(x, y), function(x.to("xla"), y.to("xla")).cpu()
    atol = torch.finfo(dtype).tiny if dtype is torch.bfloat16 else 0
    torch.testing.assert_close(got, expected, rtol=0, atol=atol, equal_nan=True)


def hlo(function, dtype):
    x, y = (torch.ones(4, dtype=dtype).to("xla") for _ in range(2))
    return str(torch_xla._XLAC._get_xla_tensors_hlo([function(x, y)]))


@pytest.mark.on_cpu
@pytest.mark.parametrize("name", NO_LESS | LESS)
def test_only_what_is_exact_or_rounded_once_stays_in_halves(halves_stay, name, monkeypatch):
    function = (NO_LESS | LESS)[name]
    assert ("f32[" in hlo(function, torch.bfloat16).split("ENTRY")[1]) == (name in LESS)
    monkeypatch.undo()
    if name not in ("neg and abs",):
        assert "f32[" in hlo(function, torch.bfloat16).split("ENTRY")[1]


def test_halves_stay_on_gpus_alone():
    assert [name for name, x in platforms.CHOICES.items() if x.keeps_halves] == ["cuda"]

"""Pointwise operators where JAX and torch would differ if nobody looked."""

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

from torch_xdist import metrics

NAN, INF = float("nan"), float("inf")
FLOATS = torch.tensor([-INF, -7.5, -2.0, -0.5, -0.0, 0.0, 0.5, 2.0, 7.5, INF, NAN])
DIVISORS = torch.tensor([2.0, -3.0, 1.5])
WHOLE = torch.tensor([-9, -7, -2, -1, 0, 1, 2, 7, 9])


def on_each(function, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`function` of the tensors without gradients: on the CPU and on the device."""
    expected = function(*tensors)
    found = function(*(t.to("xla") for t in tensors))
    return expected, found.cpu()


def assert_same(function, *tensors: torch.Tensor) -> None:
    expected, found = on_each(function, *tensors)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, equal_nan=True)
    if expected.is_floating_point():
        assert torch.equal(
            torch.signbit(found)[expected == 0], torch.signbit(expected)[expected == 0]
        )


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_float_division_rounds_as_eager_does_down_to_the_sign_of_zero(mode: str | None) -> None:
    finite = FLOATS[1:-2]
    assert_same(lambda x, y: torch.div(x[:, None], y, rounding_mode=mode), finite, DIVISORS)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("divisor", [2, 5, 2.5])
def test_rounded_division_by_a_number_stays_on_the_device(mode: str, divisor: float) -> None:
    metrics.clear_counters()
    for x in (FLOATS[1:-2], WHOLE):
        assert_same(lambda x: torch.div(x, divisor, rounding_mode=mode), x)
    assert not metrics.missing_lowerings()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
def test_integer_division_remainder_and_fmod_have_eagers_signs(dtype: torch.dtype) -> None:
    x, y = WHOLE.to(dtype), torch.tensor([2, -3, 5], dtype=dtype)
    assert_same(
        lambda x, y: torch.stack(
            [
                x[:, None] // y,
                torch.div(x[:, None], y, rounding_mode="trunc"),
                x[:, None] % y,
                torch.fmod(x[:, None], y),
            ]
        ),
        x,
        y,
    )


def test_float_remainder_takes_the_sign_of_the_divisor_and_fmod_of_the_dividend() -> None:
    assert_same(lambda x, y: torch.remainder(x[:, None], y), FLOATS, DIVISORS)
    assert_same(lambda x, y: torch.fmod(x[:, None], y), FLOATS, DIVISORS)


def test_bytes_wrap_around() -> None:
    x = torch.tensor([0, 1, 200, 255], dtype=torch.uint8)
    assert_same(lambda x: torch.stack([x + 100, x - 1, x * 3, -x]), x)


def test_narrow_casts_keep_the_low_bits_and_bool_is_not_zero() -> None:
    x = torch.tensor([-1.0, -3.7, 0.3, 200.9, 300.0])
    assert_same(lambda x: torch.stack([x.to(torch.uint8), x.to(torch.int8).view(torch.uint8)]), x)
    assert_same(lambda x: x.to(torch.bool), torch.cat([x, torch.tensor([NAN, 0.0])]))


def test_integer_powers_wrap_and_negative_exponents_divide() -> None:
    assert_same(lambda x: torch.stack([x**0, x**2, x**13]), WHOLE)
    assert_same(lambda x, y: x[:, None] ** y, WHOLE, torch.tensor([0, 1, 5]))
    base = torch.tensor([-2, -1, 1, 2])
    assert_same(lambda x, y: torch.pow(x[:, None], y), base, torch.tensor([-1, -2]))


def test_powers_of_zero_and_of_negative_numbers_are_eagers() -> None:
    exponents = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0, 3.0])
    assert_same(lambda x, y: x[:, None] ** y, FLOATS, exponents)
    assert_same(lambda x: torch.stack([x**0.5, x**-0.5, x**2, x**-2, x**3, x**1.7]), FLOATS)


def test_complex_powers_of_zero_are_one_and_zero() -> None:
    x = torch.tensor([0, 1 + 2j, -1j])
    assert_same(lambda x: torch.stack([x**0, x**2, x ** (1 + 0j)]), x)


def test_sign_heaviside_and_sgn_of_nan_and_zeros_are_eagers() -> None:
    assert_same(torch.sign, FLOATS[:-1])
    assert_same(lambda x: torch.heaviside(x, torch.full_like(x, 0.25)), FLOATS)
    assert_same(torch.sgn, torch.tensor([0j, 3 + 4j, -2j]))


def test_extremes_and_limits_keep_nan() -> None:
    other = torch.flip(FLOATS, [0])
    for function in (torch.maximum, torch.minimum, torch.fmax, torch.fmin):
        assert_same(function, FLOATS, other)
    assert_same(lambda x: torch.stack([x.clamp(-1, 1), x.clamp(1, -1), x.clamp_min(-1.0)]), FLOATS)


def test_shifts_beyond_the_width_leave_nothing_or_the_sign() -> None:
    x = torch.tensor([-5, 5, 1], dtype=torch.int32)
    by = torch.tensor([0, 3, 31, 32, 40], dtype=torch.int32)
    assert_same(lambda x, y: x[:, None] >> y, x, by)
    assert_same(lambda x, y: x[:, None] << y, x, by)


def test_rounding_is_half_to_even_and_leaves_integers_alone() -> None:
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1.2345])
    assert_same(lambda x: torch.stack([x.round(), x.trunc(), x.frac(), x.ceil(), x.floor()]), x)
    assert_same(lambda x: torch.stack([x.round(decimals=2), (x * 100).round(decimals=-1)]), x)
    assert_same(lambda x: torch.stack([x.floor(), x.round(), x.trunc()]), WHOLE)


def test_nan_to_num_fills_with_the_limits_of_the_dtype_itself() -> None:
    assert_same(torch.nan_to_num, FLOATS)
    assert_same(torch.nan_to_num, FLOATS.bfloat16())


def test_nextafter_moves_by_one_unit_of_a_half() -> None:
    x = torch.tensor([1.0, -1.0, 0.0], dtype=torch.bfloat16)
    assert_same(torch.nextafter, x, torch.full_like(x, 2.0))


def test_lerp_ends_exactly_at_its_ends() -> None:
    start, end = torch.tensor([1e8, -3.0]), torch.tensor([1.0, 5.5])
    assert_same(
        lambda a, b: torch.stack([a.lerp(b, 1.0), a.lerp(b, 0.0), a.lerp(b, 0.3)]), start, end
    )


def test_xlogy_of_zero_is_zero_unless_the_other_is_nan() -> None:
    other = torch.tensor([NAN, 0.0, INF, -1.0, 2.0])
    assert_same(torch.xlogy, torch.zeros(5), other)


@pytest.mark.parametrize(
    "activation",
    [
        lambda x: F.gelu(x, approximate="tanh"),
        F.gelu,
        F.hardswish,
        F.mish,
        F.logsigmoid,
        lambda x: F.softplus(x, beta=2.0, threshold=3.0),
        lambda x: F.elu(x, alpha=0.7),
        lambda x: F.leaky_relu(x, 0.3),
        lambda x: F.softshrink(x, 0.4),
        lambda x: F.glu(x.reshape(2, -1)),
    ],
)
def test_activations_and_their_gradients_equal_eager(activation) -> None:
    both(activation, torch.linspace(-8, 8, 32, dtype=torch.float64))


def test_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    x = torch.linspace(-4, 4, 65, dtype=torch.bfloat16)
    expected = F.gelu(x.float()).bfloat16()
    assert torch.equal(F.gelu(x.to("xla")).cpu(), expected)


@pytest.mark.parametrize("activation", [F.silu, F.mish])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_halves_are_rounded_once(activation, dtype) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(activation(x).sum(), x)[0]

    x = torch.linspace(-6, 6, 97, dtype=dtype)
    assert torch.equal(gradient(x.to("xla")).cpu(), gradient(x.double()).to(dtype))


def test_scalars_change_nothing_in_the_dtype() -> None:
    x = torch.arange(4, dtype=torch.int32)
    for function in (lambda x: x + 2, lambda x: x + 2.5, lambda x: x > 1.5, lambda x: x / 2):
        assert_same(function, x)


MASKED = {
    "by a mask": lambda x, mask: x * mask,
    "of a mask": lambda x, mask: mask * x,
    "in place": lambda x, mask: x.clone().mul_(mask),
    "by its numbers": lambda x, mask: x * mask.float(),
    "in double": lambda x, mask: x.double() * mask,
    "of halves": lambda x, mask: x.bfloat16() * mask,
    "of three": lambda x, mask: torch.addcmul(x, x, mask.float()),
}


@pytest.mark.parametrize("product", MASKED.values(), ids=MASKED)
def test_a_product_with_a_mask_is_nan_where_the_other_factor_is_not_finite(product) -> None:
    x = torch.tensor([float("inf"), float("nan"), 1.0, -2.0])
    mask = torch.tensor([False, False, False, True])
    found = product(x.to("xla"), mask.to("xla")).cpu()
    torch.testing.assert_close(found, product(x, mask), equal_nan=True)


@pytest.mark.parametrize("function", [torch.nn.functional.elu, torch.nn.functional.hardswish])
def test_the_gradient_at_a_nan_is_nan(function) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    x = torch.linspace(-5, 5, 64)
    x[9] = float("nan")
    torch.testing.assert_close(
        gradient(x.clone().to("xla")).cpu(), gradient(x.clone()), equal_nan=True
    )


def test_the_gradient_of_a_largest_number_that_is_nan_is_nan() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return torch.autograd.grad(x.amax(-1).sum(), x)[0]

    x = torch.randn(5, 40)
    x[2, 7] = float("nan")
    torch.testing.assert_close(
        gradient(x.clone().to("xla")).cpu(), gradient(x.clone()), equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_common_divisors_and_multiples_equal_eager_and_end_at_the_least_integer(
    dtype: torch.dtype,
) -> None:
    least = torch.iinfo(dtype).min
    numbers = torch.tensor([0, 1, 6, 7, 12, 100, 127, least, least + 1], dtype=dtype)
    assert_same(lambda x: torch.gcd(x[:, None], x), numbers)
    # Of the smallest integer torch divides by -1 here, and the processor ends the process.
    assert_same(lambda x: torch.lcm(x[:, None], x), numbers[:7])

"""Functions of many numbers of float32 equal eager torch's, at the ends of their ranges too."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from torch_xdist.ops import in_double

COUNT = in_double._MANY
ONE = {name: getattr(torch, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan")}
TWO = {
    "atan2": torch.atan2,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
}
INF, NAN = float("inf"), float("nan")
ENDS = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-30, -1e-36, 3.4e38, 2.0**19, INF, -INF, NAN]


def numbers(scale: float, seed: int = 0) -> torch.Tensor:
    """As many of every size up to `scale`, of either sign."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.rand(COUNT, generator=generator) * 40 - 38 + np.log2(scale)
    return torch.randn(COUNT, generator=generator).sign() * 2**sizes


def close(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> None:
    """Within two units in the last place of double precision's; the signs of zeros are torch's."""
    found = function(*[x.to("xla") for x in operands]).cpu()
    exact = function(*[x.double() for x in operands])
    torch.testing.assert_close(found.double(), exact, rtol=2**-22, atol=1e-37, equal_nan=True)
    zeros = exact == 0
    assert torch.equal(found[zeros].signbit(), function(*operands)[zeros].signbit())


@pytest.mark.parametrize("function", ONE.values(), ids=ONE)
def test_a_function_of_numbers_of_every_size(function: Callable) -> None:
    is_of_angles = function in (torch.sin, torch.cos, torch.tan)
    close(function, numbers(2.0**19 if is_of_angles else 1.0))


@pytest.mark.parametrize("function", ONE.values(), ids=ONE)
def test_what_is_too_large_zero_or_no_number_is_as_torch_has_it(function: Callable) -> None:
    x = torch.tensor(ENDS).repeat(COUNT // len(ENDS) + 1)
    found, expected = function(x.to("xla")).cpu(), function(x)
    torch.testing.assert_close(found, expected, rtol=2**-22, atol=1e-37, equal_nan=True)
    zeros = expected == 0
    assert torch.equal(found[zeros].signbit(), expected[zeros].signbit())


@pytest.mark.parametrize("limit", [5.0, INF], ids=["small", "all"])
@pytest.mark.parametrize("name", TWO)
def test_two_operands_of_every_kind(name: str, limit: float) -> None:
    """With none that is too large, and with some, where XLA's own is taken."""
    ends = torch.tensor([x for x in ENDS if limit == INF or abs(x) <= limit])
    a, b = torch.cartesian_prod(ends, ends).T
    # torch's own rest is nan where the quotient is infinite, in vectors and not in what is left.
    is_finite = (a / b).isfinite() | ~a.isfinite() | (b == 0)
    a, b = (x[is_finite].repeat(COUNT // len(ends) ** 2 * 2) for x in (a, b))
    found, expected = TWO[name](a.to("xla"), b.to("xla")).cpu(), TWO[name](a, b)
    torch.testing.assert_close(found, expected, rtol=2**-22, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("function", [torch.fmod, torch.remainder, torch.floor_divide])
def test_rests_are_exact(function: Callable) -> None:
    a = numbers(2.0**20, 1)
    # Up to 2^27 times as large, and whole multiples.
    b = a / numbers(2.0**27, 2).abs().clamp(min=0.01)
    b[::3] = a[::3] / torch.randint(1, 1000, b[::3].shape)
    found, expected = function(a.to("xla"), b.to("xla")).cpu(), function(a, b)
    assert torch.equal(found, expected)


def test_angles_of_every_direction() -> None:
    close(torch.atan2, numbers(2.0**10, 1), numbers(2.0**10, 2))


@pytest.mark.parametrize("name", ["sin", "tan", "acos", "atan"])
def test_gradients_equal_eagers(name: str) -> None:
    def gradients(x: torch.Tensor) -> list[torch.Tensor]:
        x.requires_grad_()
        first = torch.autograd.grad(getattr(torch, name)(x).sum(), x, create_graph=True)[0]
        return [first.detach().cpu(), torch.autograd.grad(first.sum(), x)[0].cpu()]

    x = torch.rand(COUNT) * 0.9
    for found, expected in zip(gradients(x.to("xla")), gradients(x.clone())):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    x = (torch.arange(COUNT) * 0.01 - 80).to(dtype)
    torch.testing.assert_close(x.to("xla").sin().cpu(), x.sin())
    torch.testing.assert_close(torch.fmod(x.to("xla"), 0.75).cpu(), torch.fmod(x, 0.75))

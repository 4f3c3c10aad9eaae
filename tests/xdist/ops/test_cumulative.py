"""Running sums, products and extremes, and the gradient of products, equal eager torch's."""

from collections.abc import Callable

import pytest
import torch

import torch_xla


def agree(f: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    torch.testing.assert_close(_on("xla", f, x), _on("cpu", f, x), equal_nan=True)


def _on(device: str, f: Callable[[torch.Tensor], object], x: torch.Tensor) -> list[torch.Tensor]:
    found = f(x.to(device))
    parts = found if isinstance(found, tuple | list) else (found,)
    return [part.detach().cpu() for part in parts]


@pytest.mark.parametrize("size", [17, 24, 81])
def test_a_length_of_any_number_of_pieces(size: int) -> None:
    torch.manual_seed(0)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.cumsum(1), x.cumprod(1), *x.cummax(1), *x.cummin(1), x.cumsum(1).cumsum(-1))

    agree(run, torch.randn(2, size, 3, dtype=torch.double))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.bfloat16], ids=str)
def test_extremes_of_every_dtype_begin_with_their_identity(dtype: torch.dtype) -> None:
    x = (torch.arange(40) % 7 - 3).clamp(-3 if dtype.is_signed else 0).to(dtype)
    agree(lambda x: (*x.cummax(0), *x.cummin(0)), x)
    agree(lambda x: (*x.cummax(0), *x.cummin(0)), x[:5])  # Few numbers go by XLA's own.


def test_what_is_not_finite_spreads_to_later_places_alone() -> None:
    x = torch.randn(3, 60)
    x[0, 20], x[1, 3], x[1, 50], x[2, 8] = float("nan"), float("inf"), -float("inf"), -0.0
    agree(lambda x: (x.cumsum(1), *x.cummax(1), *x.cummin(1)), x)


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_of_many_numbers_are_rounded_once(reverse: bool) -> None:
    torch.manual_seed(0)
    x = torch.rand(300_001)
    exact = x.double().cumsum(0) if not reverse else x.double().flip(0).cumsum(0).flip(0)
    on_device = x.to("xla")
    found = on_device.cumsum(0) if not reverse else on_device.flip(0).cumsum(0).flip(0)
    assert ((found.cpu().double() - exact).abs() <= exact * 2**-24 * 1.001).all()


def test_products_come_back_from_what_float32_cannot_hold() -> None:
    x = torch.tensor([1e30, 1e30, 1e-30, 1e-30] * 10)
    agree(lambda x: x.cumprod(0), x)


def _with_zeros() -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.rand(3, 20, dtype=torch.double) + 0.5
    x[0, 5] = x[1, 3] = x[1, 9] = 0
    return x


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_running_products_of_zeros_too_equal_eagers(dim: int) -> None:
    def gradients(x: torch.Tensor) -> list[torch.Tensor]:
        x.requires_grad_()
        first = torch.autograd.grad(x.cumprod(dim).sin().sum(), x, create_graph=True)
        return [*first, *torch.autograd.grad(first[0].square().sum(), x)]

    agree(gradients, _with_zeros())


def test_the_gradient_of_a_running_product_is_one_row() -> None:
    x = _with_zeros().to("xla").requires_grad_()
    torch_xla.sync()
    x.cumprod(1).sum().backward()
    names = [row[0].name for row in x.value.trace.rows]
    assert names.count("cumprod_backward") == 1
    assert "aten.div.Tensor" not in names
    torch_xla.sync()


def _seeded(x: torch.Tensor, dim: int, seed: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of running maxima and minima, for these of their results."""
    x.requires_grad_()
    ends = x.cummax(dim).values, x.cummin(dim).values
    return [torch.autograd.grad(end, x, seed.to(x.device))[0] for end in ends]


@pytest.mark.parametrize("size", [1, 5, 17, 24, 81])
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_running_extremes_go_to_where_they_stood(size: int, dim: int) -> None:
    torch.manual_seed(0)
    # Few numbers, so that many are equal: the last of them is where an extreme stands.
    x = torch.randint(7, (size, size)).double()
    seed = torch.randn(size, size, dtype=torch.double)
    agree(lambda x: _seeded(x, dim, seed), x)
    agree(lambda x: _seeded(x, dim, seed.bfloat16()), x.bfloat16())


def test_a_gradient_of_an_extreme_that_is_not_finite_stays_in_its_run() -> None:
    x, seed = torch.randn(4, 40), torch.randn(4, 40)
    seed[0, 7], seed[1, 0], seed[2, 39] = float("inf"), float("nan"), -float("inf")
    x[3, 11] = float("nan")
    agree(lambda x: _seeded(x, 1, seed), x)


def test_gradients_of_gradients_of_extremes_equal_eagers() -> None:
    def gradients(x: torch.Tensor) -> list[torch.Tensor]:
        x.requires_grad_()
        first = torch.autograd.grad(x.cummax(1).values.exp().sum(), x, create_graph=True)[0]
        return [first, *torch.autograd.grad(first.square().sum(), x)]

    agree(gradients, torch.rand(3, 30, dtype=torch.double))


def test_the_gradient_of_a_running_extreme_is_one_row() -> None:
    x = torch.rand(3, 20, device="xla").requires_grad_()
    torch_xla.sync()
    x.cummin(1).values.sum().backward()
    names = [row[0].name for row in x.value.trace.rows]
    assert names.count("cummaxmin_backward") == 1
    assert "aten.scatter_add.default" not in names
    torch_xla.sync()


def test_a_number_and_nothing_have_gradients_too() -> None:
    def gradients(x: torch.Tensor) -> list[torch.Tensor]:
        x.requires_grad_()
        ends = x.cumprod(0), x.cummax(0).values
        return [torch.autograd.grad(end.sum(), x)[0] for end in ends]

    agree(gradients, torch.tensor(2.0))
    agree(gradients, torch.zeros(0))

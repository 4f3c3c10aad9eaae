"""Random operators: the moments, the range and the dtype of large draws."""

import math

import pytest
import torch

import torch_xla

COUNT = 40_000


def drawn(name: str, *arguments: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.empty(COUNT, dtype=dtype, device="xla")
    return getattr(x, f"{name}_")(*arguments).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "arguments", "mean", "deviation"),
    [
        ("uniform", (-1.0, 3.0), 1.0, 4 / math.sqrt(12)),
        ("normal", (1.0, 2.0), 1.0, 2.0),
        ("exponential", (2.0,), 0.5, 0.5),
        ("geometric", (0.25,), 4.0, math.sqrt(12)),
        ("bernoulli", (0.3,), 0.3, math.sqrt(0.21)),
        ("random", (3, 10), 6.0, 2.0),
    ],
)
def test_samplers_have_their_mean_and_deviation(
    name: str, arguments: tuple[float, ...], mean: float, deviation: float, dtype: torch.dtype
) -> None:
    x = drawn(name, *arguments, dtype=dtype)
    assert x.dtype == dtype
    x = x.double()
    # Six standard errors, and the rounding of a half.
    slack = 6 * deviation / math.sqrt(COUNT) + (0.02 * deviation if dtype is torch.bfloat16 else 0)
    assert abs(x.mean() - mean) < slack
    assert abs(x.std() / deviation - 1) < 0.06


def test_log_normal_and_cauchy_have_their_medians() -> None:
    assert abs(drawn("log_normal", 1.0, 0.5).log().mean() - 1) < 0.02
    quartiles = drawn("cauchy", 2.0, 3.0).quantile(torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 2.0, 5.0]), atol=0.25, rtol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool])
def test_random_fills_the_range_of_an_integer_dtype(dtype: torch.dtype) -> None:
    x = drawn("random", dtype=dtype).double()
    top = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    assert x.min() >= 0
    assert x.max() <= top
    assert abs(x.mean() / top - 0.5) < 0.01


def test_uniform_stays_below_its_upper_end_and_covers_both_parts_of_complex_numbers() -> None:
    assert drawn("uniform", 1.0, 2.0, dtype=torch.float16).max() <= 2.0
    x = torch.view_as_real(drawn("uniform", 1.0, 2.0, dtype=torch.complex64))
    assert x.min() >= 1
    assert abs(x.mean(0) - 1.5).max() < 0.02


def test_dropout_keeps_its_share_scaled_up_and_its_mask_for_the_gradient() -> None:
    x = torch.ones(COUNT, device="xla", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    values, gradient = y.detach().cpu(), x.grad.cpu()
    assert set(values.unique().tolist()) == {0.0, torch.tensor(4 / 3).item()}
    assert abs(values.mean() - 1) < 0.02
    assert torch.equal(gradient, values)


def test_dropout_of_everything_and_of_nothing() -> None:
    x = torch.ones(8, device="xla")
    assert torch.nn.functional.dropout(x, 1.0).tolist() == [0.0] * 8
    assert torch.nn.functional.dropout(x, 0.0).tolist() == [1.0] * 8


def test_randperm_is_a_permutation_and_randint_covers_its_range() -> None:
    torch.manual_seed(0)
    assert sorted(torch.randperm(50, device="xla").tolist()) == list(range(50))
    assert set(torch.randint(2, 5, (200,), device="xla").tolist()) == {2, 3, 4}
    like = torch.zeros(200, dtype=torch.int32, device="xla")
    assert set(torch.randint_like(like, 3).tolist()) == {0, 1, 2}


def test_multinomial_follows_the_weights_and_never_draws_weight_zero() -> None:
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0], device="xla")
    often = torch.multinomial(weights, COUNT, replacement=True).cpu()
    assert often.min() == 1
    assert often.max() == 2
    assert abs(often.eq(2).double().mean() - 0.75) < 0.02
    rows = torch.multinomial(weights.expand(100, 4), 2).cpu()
    assert rows.sort(1).values.eq(torch.tensor([1, 2])).all()


@pytest.mark.long
def test_counts_and_gammas_have_their_means() -> None:
    torch.manual_seed(0)
    full = lambda value: torch.full((COUNT,), value, device="xla")  # noqa: E731
    assert abs(torch.poisson(full(3.5)).mean().item() - 3.5) < 0.06
    assert abs(torch.binomial(full(10.0), full(0.3)).mean().item() - 3.0) < 0.05
    assert abs(torch._standard_gamma(full(2.0)).mean().item() - 2.0) < 0.05
    sides = torch._sample_dirichlet(torch.ones(1000, 4, device="xla")).cpu()
    torch.testing.assert_close(sides.sum(1), torch.ones(1000))


def test_rrelu_draws_slopes_within_its_ends() -> None:
    y = torch.nn.functional.rrelu(-torch.ones(COUNT, device="xla"), 0.1, 0.3, training=True).cpu()
    assert y.min() >= -0.3
    assert y.max() <= -0.1
    assert abs(y.mean() + 0.2) < 0.005


def test_draws_of_one_program_are_those_of_programs_of_their_own() -> None:
    def draws(sync: bool) -> list[torch.Tensor]:
        torch.manual_seed(5)
        made = []
        for make in (torch.rand, torch.randn, torch.randperm):
            made.append(make(7, device="xla"))
            if sync:
                torch_xla.sync()
        return [x.cpu() for x in made]

    assert all(map(torch.equal, draws(sync=True), draws(sync=False)))


@pytest.mark.parametrize(
    "make", [torch.rand, torch.randn, lambda *n, **at: torch.randint(9, n, **at)]
)
def test_the_same_numbers_are_drawn_in_one_dim_and_in_several(make) -> None:
    def draw(*shape: int) -> torch.Tensor:
        torch.manual_seed(5)
        return make(*shape, device="xla").cpu().flatten()

    for shape in ((3, 4, 10), (2, 2048), (2, 2049), (40, 30, 3, 3), (2, 50, 60)):
        assert torch.equal(draw(*shape), draw(math.prod(shape)))


@pytest.mark.parametrize(
    ("low", "high"), [(-5, 5), (0, 2**63 - 1), (-(2**63), 2**63 - 1), (4, 5)], ids=str
)
def test_whole_numbers_are_drawn_evenly_from_all_of_their_range(low: int, high: int) -> None:
    torch.manual_seed(1)
    x = torch.randint(low, high, (COUNT,), device="xla").cpu()
    assert low <= x.min() and x.max() < high
    span = high - low
    places = (x.double() - low) / span
    slack = 6 / math.sqrt(12 * COUNT)
    assert abs(places.mean() - (0.5 - 0.5 / span)) < slack


@pytest.mark.on_cpu
def test_short_dims_are_one_with_those_before_them_in_the_program_of_a_cpu() -> None:
    drawn = torch.rand(40, 30, 3, 3, device="xla")
    program = torch_xla._XLAC._get_xla_tensors_hlo([drawn])
    assert "u32[40,270]" in program and "u32[40,30,3,3]" not in program

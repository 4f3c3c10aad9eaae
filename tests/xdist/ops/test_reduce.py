"""Reductions: dtypes, dims, nan, ties, and what is left of nothing."""

import pytest
import torch

import torch_xla  # noqa: F401

NAN = float("nan")


def assert_same(function, *tensors: torch.Tensor) -> None:
    expected, found = function(*tensors), function(*(t.to("xla") for t in tensors))
    pairs = zip(expected, found) if isinstance(expected, tuple) else [(expected, found)]
    for one, other in pairs:
        torch.testing.assert_close(other.cpu(), one, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_sums_and_products_of_integers_are_int64(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 0, 3], [200, 2, 1]]).to(dtype)
    assert_same(lambda x: (x.sum(), x.sum(1), x.prod(0), x.cumsum(1), x.sum(dtype=torch.int16)), x)


def test_halves_are_accumulated_in_float32() -> None:
    x = torch.full((3000,), 0.1, dtype=torch.bfloat16)
    assert_same(lambda x: (x.sum(), x.mean(), x.var(), x.norm()), x)


def test_dims_count_from_either_end_and_an_empty_list_means_all() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert_same(
        lambda x: (
            x.sum(-1),
            x.sum((0, -1), keepdim=True),
            x.amax(()),
            x.sum([]),
            x[0, 0, 0].sum(0),
        ),
        x,
    )


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_nothing_sums_to_zero_and_averages_to_nan() -> None:
    x = torch.zeros(0, 3)
    assert_same(lambda x: (x.sum(), x.prod(), x.mean(), x.sum(0), x.all(), x.any()), x)
    assert_same(lambda x: (x.logsumexp(0), x.norm(dim=0), torch.var(x, 0)), x)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_variance_counts_the_correction_and_never_divides_by_less_than_zero() -> None:
    x = torch.tensor([[1.0, 4.0], [2.0, 8.0]])
    assert_same(lambda x: tuple(torch.var(x, 0, correction=c) for c in (0, 1, 2, 3)), x)
    assert_same(lambda x: torch.var_mean(x, 1), x + 2j * x)


@pytest.mark.parametrize("name", ["max", "min", "cummax", "cummin", "median", "nanmedian", "mode"])
def test_positions_of_ties_and_of_nan_are_eagers(name: str) -> None:
    x = torch.tensor([[2.0, 5.0, 5.0, 2.0, 3.0], [1.0, NAN, 7.0, NAN, 0.0]])
    rows = x[:1] if name in ("median", "nanmedian") else x
    assert_same(lambda x: tuple(getattr(torch, name)(x, 1)), rows)


def test_argmax_of_everything_keeps_all_dims_as_ones() -> None:
    x = torch.tensor([[1, 7, 7], [7, 0, 0]])
    assert_same(lambda x: (x.argmax(), x.argmin(keepdim=True), x.argmax(0), x[0, 0].argmax()), x)


@pytest.mark.parametrize("order", [0, 1, 2, 2.5, float("inf"), -float("inf")])
def test_norms_of_every_order_equal_eager(order: float) -> None:
    x = torch.tensor([[3.0, -4.0, 0.5], [0.0, 1.0, -2.0]])
    assert_same(lambda x: torch.linalg.vector_norm(x, order, dim=1), x)


def test_logsumexp_survives_infinities() -> None:
    inf = float("inf")
    x = torch.tensor([[-inf, -inf], [inf, 1.0], [1000.0, 1000.0], [NAN, 0.0]])
    assert_same(lambda x: (x.logsumexp(1), x.logcumsumexp(1), x[2].softmax(0)), x)


def test_softmax_of_a_masked_row_is_nan_and_safe_softmax_zero() -> None:
    x = torch.full((2, 3), -float("inf"))
    assert_same(lambda x: (x.softmax(1), torch.ops.aten._safe_softmax(x, 1)), x)


def test_histograms_count_the_last_edge_and_nothing_outside() -> None:
    x = torch.tensor([0.0, 0.5, 1.0, 2.0, 2.5, -1.0, 2.0])
    assert_same(lambda x: (torch.histc(x, 4, 0, 2), torch.histc(x, 3)), x)
    assert_same(lambda x: tuple(torch.histogram(x, 4, range=(0.0, 2.0), density=True)), x)


def test_a_long_running_sum_equals_eager() -> None:
    x = torch.arange(80_001, dtype=torch.float64).sin()
    assert_same(lambda x: (x.cumsum(0), x[:80_000].reshape(2, -1).cumsum(1)), x)

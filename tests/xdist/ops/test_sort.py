"""Sorting and searching: ties, nan, direction, and every overload's shape."""

import pytest
import torch

import torch_xla  # noqa: F401

NAN = float("nan")


def assert_same(function, *tensors: torch.Tensor) -> None:
    expected, found = function(*tensors), function(*(t.to("xla") for t in tensors))
    pairs = zip(expected, found) if isinstance(expected, tuple) else [(expected, found)]
    for one, other in pairs:
        torch.testing.assert_close(other.cpu(), one, equal_nan=True)


@pytest.mark.parametrize("descending", [False, True])
def test_stable_sort_keeps_the_order_of_equals_and_puts_nan_at_the_large_end(
    descending: bool,
) -> None:
    x = torch.tensor([[3.0, NAN, 1.0, 3.0, -0.0, 0.0], [1.0, 1.0, NAN, NAN, 2.0, -1.0]])
    assert_same(lambda x: tuple(torch.sort(x, dim=1, stable=True, descending=descending)), x)
    assert_same(lambda x: tuple(torch.sort(x, dim=0, stable=True, descending=descending)), x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16])
def test_sort_takes_every_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([3, 0, 255, 1, 0]).to(dtype)
    assert_same(lambda x: tuple(torch.sort(x, stable=True)), x)


@pytest.mark.parametrize("largest", [False, True])
def test_topk_takes_the_extreme_few_in_order(largest: bool) -> None:
    x = torch.tensor([[5, -7, 3, 9], [2, 8, -1, 0]])
    assert_same(lambda x: tuple(torch.topk(x, 2, dim=1, largest=largest)), x)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_finds_places_in_each_row_and_behind_nan(right: bool) -> None:
    rows = torch.tensor([[1.0, 3.0, 3.0, 7.0], [0.0, 2.0, 4.0, 6.0]])
    values = torch.tensor([[3.0, 0.0, 9.0], [4.0, NAN, -1.0]])
    assert_same(lambda s, v: torch.searchsorted(s, v, right=right), rows, values)
    assert_same(lambda s, v: torch.bucketize(v, s[0], right=right, out_int32=True), rows, values)


def test_searchsorted_goes_through_a_sorter() -> None:
    x = torch.tensor([5.0, 1.0, 3.0])
    assert_same(
        lambda x, v: torch.searchsorted(x, v, sorter=x.argsort()), x, torch.tensor([2.0, 5])
    )


def test_isin_finds_members_and_inverts() -> None:
    x, tested = torch.tensor([[1, 2], [3, 4]]), torch.tensor([4, 1, 9])
    assert_same(
        lambda x, t: (torch.isin(x, t), torch.isin(x, t, invert=True), torch.isin(x, 3)), x, tested
    )


PIECES = {
    "equals": lambda x: (x * 2).round() / 2,
    "all alike": torch.zeros_like,
    "no smallest": lambda x: x.where(x > 2, -torch.inf),
    "infinite": lambda x: x.where(x < 2, torch.inf),
    "with nan": lambda x: x.where(x < 3.5, torch.nan),
}


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("shape", [(100, 1500), (3, 50000)], ids=str)
@pytest.mark.parametrize("name", PIECES)
def test_topk_of_many_is_the_beginning_of_a_stable_sort(
    name: str, shape: tuple[int, int], largest: bool
) -> None:
    torch.manual_seed(0)
    x = PIECES[name](torch.randn(shape))
    values, places = torch.topk(x.to("xla"), 11, largest=largest)
    expected = torch.sort(x, stable=True, descending=largest)
    assert_same(lambda x: torch.topk(x, 11, largest=largest).values, x)
    torch.testing.assert_close(values.cpu(), expected.values[:, :11], equal_nan=True)
    assert torch.equal(places.cpu(), expected.indices[:, :11])

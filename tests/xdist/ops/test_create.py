"""Tensors made from nothing have eager's values, shapes and dtypes."""

import pytest
import torch

import torch_xla  # noqa: F401
from torch_xdist import metrics


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.arange(5, device=d),
        lambda d: torch.arange(0.5, 3, 0.25, device=d),
        lambda d: torch.arange(10, -3, -4, dtype=torch.int32, device=d),
        lambda d: torch.arange(1, 2, 0.1, dtype=torch.float32, device=d),
        lambda d: torch.linspace(-1, 1, 7, device=d),
        lambda d: torch.linspace(0, 10, 4, dtype=torch.int64, device=d),
        lambda d: torch.linspace(3, 5, 1, device=d),
        lambda d: torch.logspace(0, 3, 5, base=2.0, device=d),
        lambda d: torch.eye(3, 5, dtype=torch.bool, device=d),
        lambda d: torch.full((2, 3), 1.5, dtype=torch.int32, device=d),
        lambda d: torch.full((2,), True, device=d),
        lambda d: torch.zeros(2, 0, device=d),
        lambda d: torch.ones(3, dtype=torch.complex64, device=d),
        lambda d: torch.tril_indices(3, 4, -1, device=d),
        lambda d: torch.triu_indices(3, 4, 1, device=d),
        lambda d: torch.scalar_tensor(7, device=d),
        lambda d: torch.ones(3, 4, device=d).tril(1).triu(-1),
        lambda d: torch.ones(2, device=d).new_full((3,), 2.5),
        lambda d: torch.ones(2, device=d).new_full((3, 4), 7.5),
        lambda d: torch.full((3, 5), 7, out=torch.ones(3, 5, device=d)),
        lambda d: torch.full_like(torch.ones(2, dtype=torch.uint8, device=d), 300 - 256),
        lambda d: torch.hann_window(6, device=d),
    ],
)
def test_factories_equal_eager(make) -> None:
    torch.testing.assert_close(make("xla").cpu(), make("cpu"))


def test_empty_is_zeros() -> None:
    assert torch.empty(3, 2, device="xla").cpu().eq(0).all()


def test_sizes_are_compiled_in_and_the_number_that_fills_is_an_input() -> None:
    x, before = torch.ones(2, device="xla"), metrics.counter_value("aten::new_full")
    both = [x.new_full((3, 4), value).cpu() for value in (7.5, 8.5)]
    assert torch.equal(both[0] + 1, both[1]) and both[0].shape == (3, 4)
    assert metrics.counter_value("aten::new_full") == before

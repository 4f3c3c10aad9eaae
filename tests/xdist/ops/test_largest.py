"""A nan among many numbers is the largest and the smallest, as in eager torch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

REDUCTIONS = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "amax of rows": lambda x: x.amax(-1),
    "amin of columns": lambda x: x.amin(0),
    "max of rows": lambda x: x.max(-1).values,
    "places in rows": lambda x: (x.argmax(-1), x.argmin(-1), x.max(-1).indices),
    "place in all": lambda x: x.argmax(),
    "aminmax": lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1)),
    "infinite norm": lambda x: (x.norm(float("inf")), torch.linalg.norm(x, -float("inf"), dim=1)),
    "norm of gradients": lambda x: torch.nn.utils.get_total_norm([x, x], float("inf")),
    "of each": lambda x: torch._foreach_max([x, x]),
    "median": lambda x: x.median(-1).values,
    "pools": lambda x: (F.max_pool1d(x, 4), F.adaptive_max_pool1d(x, 7)),
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(0)),
    "logsumexp": lambda x: x.logsumexp(-1),
    "running": lambda x: (x.cummax(1).values, x.cummin(0).values),
}


def numbers(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(100, 300, dtype=dtype)
    x[3, 250] = x[40, 7] = float("nan")
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=REDUCTIONS)
def test_a_nan_is_found(reduction: Callable, dtype: torch.dtype) -> None:
    found, expected = reduction(numbers(dtype).to("xla")), reduction(numbers(dtype))
    if isinstance(expected, torch.Tensor):
        found, expected = [found], [expected]
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got.cpu(), want, equal_nan=True)


def test_distances_pass_over_it_as_torchs_do() -> None:
    x = numbers(torch.float32)
    found = torch.cdist(x.to("xla"), x[:3].to("xla"), p=float("inf"))
    torch.testing.assert_close(found.cpu(), torch.cdist(x, x[:3], p=float("inf")))

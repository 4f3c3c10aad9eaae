"""Pooling on the device equals eager torch's, with its gradients."""

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both


def image(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 2, "ceil_mode": True, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2), "padding": (1, 0)},
        {"kernel_size": 6, "stride": 1},
    ],
    ids=["tiles", "overlap", "ceil", "dilated", "large"],
)
@pytest.mark.parametrize("size", [(8, 8), (7, 9)], ids=["square", "oblong"])
def test_max_pooling_and_its_gradient_equal_eager(
    options: dict[str, object], size: tuple[int, int]
) -> None:
    both(lambda x: F.max_pool2d(x, return_indices=True, **options), image(2, 3, *size))


def test_of_equal_values_the_first_is_the_maximum_and_a_nan_is_larger() -> None:
    x = torch.tensor([[[[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, float("nan"), 3.0]]]])
    both(lambda x: F.max_pool2d(x, 2, return_indices=True), x)


def test_max_pooling_of_one_and_three_dimensions_equals_eager() -> None:
    both(lambda x: F.max_pool1d(x, 3, 2, 1), image(2, 3, 9))
    both(lambda x: F.max_pool3d(x, 2, padding=1), image(1, 2, 4, 5, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True, "divisor_override": 5},
    ],
    ids=["tiles", "padding", "without-padding", "ceil"],
)
def test_mean_pooling_and_its_gradient_equal_eager(options: dict[str, object]) -> None:
    both(lambda x: F.avg_pool2d(x, **options), image(2, 3, 8, 8))


def test_mean_pooling_of_one_and_three_dimensions_equals_eager() -> None:
    both(lambda x: F.avg_pool1d(x, 3, 2, 1), image(2, 3, 9))
    both(lambda x: F.avg_pool3d(x, 2), image(1, 2, 4, 5, 4))


@pytest.mark.parametrize("out", [(4, 2), (3, 5), (1, 1)])
def test_adaptive_pooling_equals_eager(out: tuple[int, int]) -> None:
    both(lambda x: F.adaptive_avg_pool2d(x, out), image(2, 3, 8, 8))
    both(lambda x: F.adaptive_max_pool2d(x, out, True), image(2, 3, 8, 8))


def test_fractional_pooling_takes_torchs_windows() -> None:
    samples = torch.rand(2, 3, 2, dtype=torch.float64)

    def pool(x: torch.Tensor) -> torch.Tensor:
        return F.fractional_max_pool2d(
            x, 2, output_size=(3, 4), _random_samples=samples.to(x.device)
        )

    both(pool, image(2, 3, 8, 9))


def test_unpooling_puts_maxima_back() -> None:
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)

    both(there_and_back, image(2, 3, 8, 8))

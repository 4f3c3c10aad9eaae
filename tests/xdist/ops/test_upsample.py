"""Resampling and grid sampling on the device equal eager torch's, with their gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both


def image(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("size", [(10, 7), (3, 12)])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_an_image_resized_equals_eager(mode: str, size: tuple[int, int]) -> None:
    both(lambda x: F.interpolate(x, size, mode=mode), image(2, 3, 5, 6))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_corners_scales_and_antialiasing_equal_eager(mode: str) -> None:
    def resized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            F.interpolate(x, (9, 4), mode=mode, align_corners=True),
            F.interpolate(x, scale_factor=(1.5, 0.4), mode=mode),
            F.interpolate(x, (4, 11), mode=mode, antialias=True),
        )

    both(resized, image(2, 3, 5, 8))


def test_lines_and_volumes_resized_equal_eager() -> None:
    both(lambda x: F.interpolate(x, 7, mode="linear"), image(2, 3, 5))
    both(lambda x: F.interpolate(x, 7, mode="nearest"), image(2, 3, 5))
    both(lambda x: F.interpolate(x, (3, 5, 6), mode="trilinear"), image(1, 2, 4, 3, 4))


@pytest.mark.parametrize(
    ("mode", "padding"),
    [
        ("bilinear", "zeros"),
        ("bilinear", "reflection"),
        ("nearest", "border"),
        ("bicubic", "border"),
        # Each mode and each padding is among those above.
        *(
            pytest.param(mode, padding, marks=pytest.mark.long)
            for mode, padding in (
                ("bilinear", "border"),
                ("nearest", "zeros"),
                ("nearest", "reflection"),
                ("bicubic", "zeros"),
                ("bicubic", "reflection"),
            )
        ),
    ],
)
def test_grid_sampling_equals_eager(mode: str, padding: str) -> None:
    def sampled(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            F.grid_sample(x, grid, mode, padding, align_corners=align) for align in (False, True)
        )

    both(sampled, image(2, 3, 5, 6), image(2, 4, 3, 2))


def test_volumes_sampled_by_an_affine_grid_equal_eager() -> None:
    def sampled(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(theta, [2, 2, 3, 4, 3], align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)

    both(sampled, image(2, 2, 4, 4, 5), image(2, 3, 4))


def test_the_tables_of_every_ratio_are_torchs() -> None:
    for size, out in itertools.product((3, 8), (2, 5, 16)):
        both(lambda x, out=out: F.interpolate(x, out), image(1, 1, size).float())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [3, 5])
def test_bytes_are_resized_in_eagers_fixed_point_to_the_bit(mode: str, channels: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (2, channels, 9, 17), dtype=torch.uint8)

    def resized(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            F.interpolate(x, (14, 6), mode=mode, align_corners=True),
            F.interpolate(x, scale_factor=(1.0, 1.7), mode=mode),
            F.interpolate(x, scale_factor=(0.4, 2.3), mode=mode),
            F.interpolate(x, (4, 23), mode=mode, antialias=True),
        ]

    for want, have in zip(resized(x), resized(x.to("xla"))):
        assert torch.equal(have.cpu(), want)

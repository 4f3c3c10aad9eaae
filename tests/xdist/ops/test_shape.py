"""Joining, repeating, padding, folding and writing into parts."""

import pytest
import torch
from devices_agree import both

X = torch.arange(24.0).reshape(2, 3, 4)


def test_cat_skips_empty_vectors_and_promotes() -> None:
    both(lambda x: torch.cat([torch.zeros(0, device=x.device), x], 1), X)
    both(lambda x: torch.cat([x, torch.ones(2, 1, 4, dtype=torch.int64, device=x.device)], -2), X)


def test_flips_rolls_and_rotations() -> None:
    both(lambda x: (x.flip(0, -1), x.roll(1), x.roll((1, -2), (0, 2)), x.rot90(3, (0, 2))), X)


def test_repeats_equal_eager() -> None:
    both(lambda x: x.repeat(2, 1, 1, 2), X)
    both(lambda x, n: x.repeat_interleave(n, 1, output_size=4), X, torch.tensor([2, 0, 2]))


def test_a_negative_pad_crops() -> None:
    both(lambda x: torch.nn.functional.pad(x, (-1, 2, 1, -1), value=7), X)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_every_mode_pads_as_torch_does(mode: str) -> None:
    both(lambda x: torch.nn.functional.pad(x, (2, 1), mode=mode), X)
    both(lambda x: torch.nn.functional.pad(x[None], (1, 2, 2, 0), mode=mode), X)


def test_cropping_reflection_pads() -> None:
    both(lambda x: torch.nn.functional.pad(x, (-1, 2), mode="replicate"), X)


def test_strided_writes_into_slices_and_diagonals() -> None:
    both(lambda x, y: x.slice_scatter(y, 2, 1, 4, 2), X, torch.ones(2, 3, 2))
    both(lambda x, y: x.select_scatter(y, 1, -1), X, torch.ones(2, 4))
    both(lambda x, y: x.diagonal_scatter(y, -1, 2, 1), X, torch.ones(2, 3))


def test_gradients_of_slices_and_diagonals() -> None:
    both(lambda x: (x[:, 1:, ::3], x[:, -2], x.diagonal(1, 1, 2), x.diag_embed(-1)), X)


@pytest.mark.parametrize(("size", "step"), [(3, 1), (2, 2), (1, 3), (4, 3)])
def test_gradients_of_overlapping_windows(size: int, step: int) -> None:
    both(lambda x: x.unfold(2, size, step), torch.arange(20.0).reshape(2, 1, 10))


# kernel, dilation, padding, stride
WINDOWS = {
    "strides and gaps": ((2, 3), (2, 1), (1, 0), (1, 2)),
    "side by side": ((3, 2), (1, 2), (2, 1), (1, 1)),
    "more padding than kernel": ((1, 2), (1, 1), (3, 4), (1, 1)),
    "one of all": ((7, 8), (1, 1), (0, 0), (1, 1)),
    "many of many": ((6, 6), (1, 1), (1, 2), (1, 1)),
    "patches": ((2, 2), (1, 1), (0, 0), (2, 2)),
    "of more elements than shifts are taken": ((10, 9), (1, 1), (3, 3), (1, 1)),
}


@pytest.mark.parametrize("way", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("lead", [(2, 2), (2,)], ids=["batch", "no batch"])
def test_columns_of_windows_and_back(way: tuple[tuple[int, int], ...], lead: tuple[int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(*lead, 7, 8)
    options = dict(zip(("kernel_size", "dilation", "padding", "stride"), way))
    both(lambda x: torch.nn.functional.unfold(x, **options), x)
    columns = torch.nn.functional.unfold(x, **options)
    both(lambda c: torch.nn.functional.fold(c, (7, 8), **options), torch.randn_like(columns))


def test_pixels_and_channels_shuffle() -> None:
    x = torch.arange(48.0).reshape(1, 4, 2, 6)
    both(lambda x: torch.nn.functional.pixel_shuffle(x, 2), x)
    both(lambda x: torch.nn.functional.pixel_unshuffle(x, 2), x)
    both(lambda x: torch.nn.functional.channel_shuffle(x, 2).detach(), x)


def test_masked_scatter_takes_the_source_in_order() -> None:
    both(lambda x, s: x.masked_scatter(x % 2 == 0, s), X, torch.arange(100.0, 120.0))


def test_block_diagonals_and_traces() -> None:
    both(lambda x: torch.block_diag(x[0], x[1, 0], torch.ones((), device=x.device)), X)
    both(lambda x: x[0].trace(), X)
    both(torch.trace, torch.ones(3, 3, dtype=torch.uint8))

"""Convolutions of groups with few positions, which a CPU computes as products of all groups."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

from torch_xdist import platforms
from torch_xdist.ops import conv_rules, forms
from torch_xdist.ops.conv_forms import Window

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
# More than 72 taps of all channels of a group, or as many of the weight's gradient.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "planes": ((2, 27, 5, 4), (6, 9, 3, 3), {"padding": 1, "groups": 3}),
    "a kernel as large as what it sees": (
        (3, 18, 2, 2),
        (10, 9, 3, 3),
        {"padding": 1, "groups": 2},
    ),
    "strided": ((2, 20, 7, 6), (8, 10, 3, 3), {"stride": (2, 3), "padding": (1, 0), "groups": 2}),
    "dilated": ((2, 18, 6, 7), (12, 9, 3, 3), {"dilation": (2, 1), "padding": 2, "groups": 2}),
    "the weight's alone": ((2, 34, 4, 3), (51, 2, 3, 3), {"padding": 1, "groups": 17}),
    "signals": ((2, 32, 9), (6, 16, 5), {"padding": 2, "groups": 2}),
    "volumes": ((1, 8, 3, 4, 3), (4, 4, 3, 3, 3), {"padding": 1, "groups": 2}),
    "more than 64 groups": ((2, 280, 12, 6), (280, 4, 3, 3), {"padding": 1, "groups": 70}),
}
WINDOW = Window((1, 1), (1, 1), (1, 1), (1, 1), 32)


def operands(x: tuple[int, ...], w: tuple[int, ...], channels: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.double) for shape in (x, w, (channels,))]


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_and_its_gradients_equal_eagers(name: str) -> None:
    x, w, options = CASES[name]
    run = CONVOLUTIONS[len(x) - 2]
    both(lambda *a: run(*a, **options).sin(), *operands(x, w, w[0]))


@pytest.mark.parametrize("name", ["planes", "strided", "signals", "volumes"])
def test_a_transposed_convolution_and_its_gradients_equal_eagers(name: str) -> None:
    x, w, options = CASES[name]
    run = TRANSPOSED[len(x) - 2]
    grads = (x[0], w[0], *[3] * (len(x) - 2))
    both(lambda *a: run(*a, **options).sin(), *operands(grads, w, w[1] * options["groups"]))


def test_second_derivatives_equal_eagers() -> None:
    x, w, options = CASES["planes"]

    def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = torch.autograd.grad(F.conv2d(x, w, **options).sin().sum(), w, create_graph=True)[0]
        return first.square().sum()

    both(penalty, *operands(x, w, 1)[:2])


def test_halves_are_rounded_once() -> None:
    x, w, options = CASES["planes"]
    x_half, w_half = (a.bfloat16() for a in operands(x, w, 1)[:2])
    found = F.conv2d(x_half.to("xla"), w_half.to("xla"), **options).cpu()
    exact = F.conv2d(x_half.double(), w_half.double(), **options)
    assert torch.equal(found, exact.bfloat16())


@pytest.mark.parametrize(
    ("result", "w", "window", "expected"),
    [
        ((4, 512, 4, 4), (512, 16, 3, 3), WINDOW, True),
        ((8, 512, 4, 4), (512, 16, 3, 3), WINDOW, True),
        ((16, 512, 4, 4), (512, 16, 3, 3), WINDOW, False),
        ((16, 512, 4, 4), (512, 8, 3, 3), replace(WINDOW, groups=65), True),
        ((32, 2048, 14, 14), (2048, 16, 3, 3), replace(WINDOW, groups=128), False),
        ((4, 512, 4, 4), (512, 16, 3, 3), replace(WINDOW, groups=1), False),
        ((4, 512, 4, 4), (512, 16, 9, 9), WINDOW, False),
    ],
    ids=[
        "few",
        "at most 128",
        "more positions",
        "many groups",
        "too many columns",
        "one group",
        "many taps",
    ],
)
def test_positions_and_groups_choose_it(result, w, window, expected) -> None:
    assert conv_rules.is_one_product(result, w, window) == expected


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_elsewhere_they_are_xlas_own(platform: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(forms, "_chosen", [platforms.of(platform)])
    assert not conv_rules.is_one_product((4, 512, 4, 4), (512, 16, 3, 3), WINDOW)

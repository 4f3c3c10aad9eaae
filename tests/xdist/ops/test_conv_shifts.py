"""Convolutions of few channels, or of few a group, which a CPU computes as sums of shares."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

from torch_xdist import platforms
from torch_xdist.ops import conv_rules, forms
from torch_xdist.ops.conv import convolution_backward
from torch_xdist.ops.conv_forms import Window

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "several channels": ((2, 8, 7, 6), (8, 4, 3, 3), {"padding": 1, "groups": 2}),
    "more channels out": ((2, 4, 6, 6), (12, 2, 3, 2), {"groups": 2}),
    "fewer channels out": ((2, 12, 6, 6), (4, 3, 3, 3), {"padding": (2, 0), "groups": 4}),
    "dilated": ((2, 6, 9, 9), (6, 2, 3, 3), {"padding": 2, "dilation": (2, 1), "groups": 3}),
    "strided": ((2, 6, 9, 8), (6, 2, 3, 3), {"stride": 2, "padding": 1, "groups": 3}),
    "many groups": ((2, 34, 6, 6), (34, 2, 3, 3), {"padding": 1, "groups": 17}),
    "many groups, strided": ((2, 34, 7, 6), (51, 2, 3, 3), {"stride": (2, 1), "groups": 17}),
    "more than 64 groups": ((1, 140, 4, 4), (140, 2, 3, 3), {"padding": 1, "groups": 70}),
    "many groups, padded": (
        (1, 34, 8, 8),
        (34, 2, 3, 3),
        {"stride": 2, "padding": (1, 2), "groups": 17},
    ),
    "one channel each": ((2, 5, 7, 7), (5, 1, 5, 5), {"padding": 2, "groups": 5}),
    "one channel each to several": ((2, 5, 7, 7), (15, 1, 3, 3), {"padding": 1, "groups": 5}),
    "one each to several, strided": ((2, 5, 7, 7), (15, 1, 3, 3), {"stride": 2, "groups": 5}),
    "one channel each, strided": ((2, 3, 9, 11), (3, 1, 5, 3), {"stride": (3, 2), "groups": 3}),
    "one each, strided, padded": (
        (2, 3, 8, 9),
        (3, 1, 3, 3),
        {"stride": 2, "padding": (1, 4), "groups": 3},
    ),
    "one each, strided, dilated": (
        (2, 3, 9, 9),
        (3, 1, 3, 3),
        {"stride": 2, "dilation": 2, "groups": 3},
    ),
    "one each, strides of more": ((2, 3, 9, 9), (3, 1, 2, 2), {"stride": 3, "groups": 3}),
    "signals, strided": ((2, 34, 17), (34, 2, 5), {"stride": 2, "padding": 2, "groups": 17}),
    "signals": ((2, 6, 20), (9, 2, 5), {"padding": 2, "groups": 3}),
    "one channel each, of 81 taps": ((2, 3, 12, 11), (3, 1, 9, 9), {"padding": 4, "groups": 3}),
    "one each, of 99 taps, strided": (
        (2, 3, 12, 13),
        (6, 1, 9, 11),
        {"stride": 2, "padding": (4, 5), "groups": 3},
    ),
    "volumes": ((2, 4, 4, 5, 5), (4, 2, 3, 3, 3), {"padding": 1, "groups": 2}),
    "no groups, few channels": (
        (2, 3, 9, 8),
        (6, 3, 5, 5),
        {"padding": (0, 2), "dilation": (1, 2)},
    ),
    "too many shares": ((2, 18, 6, 6), (4, 9, 3, 3), {"padding": 1, "groups": 2}),
}


def operands(x: tuple[int, ...], w: tuple[int, ...], channels: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.double) for shape in (x, w, (channels,))]


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_of_groups_and_its_gradients_equal_eagers(name: str) -> None:
    x, w, options = CASES[name]
    run = CONVOLUTIONS[len(x) - 2]
    both(lambda *tensors: run(*tensors, **options), *operands(x, w, w[0]))


@pytest.mark.parametrize("name", ["several channels", "many groups, strided", "signals"])
def test_a_transposed_one_equals_eagers(name: str) -> None:
    x, w, options = CASES[name]
    run, groups = TRANSPOSED[len(x) - 2], options["groups"]
    x = (x[0], w[0], *x[2:])
    both(lambda *tensors: run(*tensors, **options), *operands(x, w, w[1] * groups))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_rounded_once(dtype: torch.dtype) -> None:
    x, w, options = CASES["many groups"]
    exact = [t.to(dtype).requires_grad_() for t in operands(x, w, 1)[:2]]
    seed = torch.randn(x).to(dtype)
    wide = [t.detach().double().requires_grad_() for t in exact]
    expected = F.conv2d(*wide, **options)
    gradients = torch.autograd.grad(expected, wide, seed.double())
    ours = [t.detach().to("xla").requires_grad_() for t in exact]
    found = F.conv2d(*ours, **options)
    results = [found, *torch.autograd.grad(found, ours, seed.to("xla"))]
    for got, right in zip(results, [expected, *gradients], strict=True):
        assert got.dtype == dtype
        # One rounding of a sum in float32.
        torch.testing.assert_close(
            got.cpu().double(), right, rtol=torch.finfo(dtype).eps / 2, atol=1e-4
        )


def test_what_is_not_finite_stays_in_its_group() -> None:
    x, w, _ = CASES["several channels"]
    images, weight, _ = (t.float() for t in operands(x, w, 1))
    images[0, 1, 3, 3], weight[6, 0, 0, 0] = float("inf"), float("nan")
    found = F.conv2d(images.to("xla"), weight.to("xla"), groups=2).cpu()
    torch.testing.assert_close(found, F.conv2d(images, weight, groups=2), equal_nan=True)


@pytest.mark.parametrize("name", ["one channel each", "many groups"])
def test_jax_can_differentiate_the_gradient_by_the_weight(name: str) -> None:
    _, w, options = CASES[name]
    window = Window((1, 1), *[(options["padding"],) * 2] * 2, (1, 1), options["groups"])
    assert conv_rules.is_weight_gradient_by_shifts(w, window)

    def gradient(grad: Any, x: Any) -> Any:
        rest = (*[[one] * 2 for one in (1, options["padding"], 1)], False, [0], options["groups"])
        mask = [False, True, False]
        return convolution_backward(grad, x, jnp.zeros(w), None, *rest, mask)[1]

    operands = [jax.random.normal(jax.random.key(i), (2, w[0], 6, 6)) for i in range(2)]
    jax.test_util.check_grads(gradient, operands, order=1, modes=["fwd", "rev"], rtol=1e-2)


WINDOW = Window((1, 1), (1, 1), (1, 1), (1, 1), 32)
BY_TWO = replace(WINDOW, stride=(2, 2))


@pytest.mark.parametrize(
    ("w", "window", "expected"),
    [
        ((128, 4, 3, 3), WINDOW, (True, True, True)),
        ((128, 4, 3, 3), BY_TWO, (True, True, True)),
        ((64, 4, 3, 3), replace(BY_TWO, groups=16), (True, False, False)),
        ((96, 1, 5, 5), BY_TWO, (True, False, True)),
        ((32, 1, 9, 8), WINDOW, (True, True, True)),
        ((32, 1, 16, 16), WINDOW, (True, True, True)),
        ((32, 1, 17, 16), WINDOW, (False, False, False)),
        ((32, 1, 3, 3), replace(BY_TWO, dilation=(1, 2)), (True, False, True)),
        ((32, 1, 3, 1), BY_TWO, (True, False, True)),
        ((32, 1, 7, 7), WINDOW, (True, True, True)),
        ((32, 4, 3, 3), replace(WINDOW, groups=16), (True, True, False)),
        ((128, 5, 3, 3), WINDOW, (True, True, False)),
        ((32, 9, 3, 3), WINDOW, (False, True, False)),
        ((320, 4, 3, 3), WINDOW, (True, False, True)),
        ((32, 1, 3, 3), replace(WINDOW, groups=1), (True, False, False)),
        ((16, 3, 5, 5), replace(WINDOW, groups=1), (True, False, False)),
        ((16, 3, 5, 5), replace(BY_TWO, groups=1), (False, False, False)),
        ((17, 3, 5, 5), replace(WINDOW, groups=1), (False, False, False)),
        ((16, 7, 3, 3), replace(WINDOW, groups=1), (False, False, False)),
    ],
    ids=[
        "groups",
        "strided",
        "few groups, strided",
        "many channels out of one",
        "more than 64 taps",
        "256 taps",
        "more than 256 taps",
        "strided and dilated",
        "strides of more than the kernel",
        "depthwise",
        "few groups",
        "more channels in",
        "many channels in",
        "many channels out",
        "one channel",
        "few channels",
        "few channels, strided",
        "few channels to more",
        "from more channels to few",
    ],
)
def test_what_is_computed_by_shifts_on_a_cpu(
    w: tuple[int, ...], window: Window, expected: tuple[bool, ...], monkeypatch: Any
) -> None:
    def found() -> tuple[bool, ...]:
        return (
            conv_rules.is_by_shifts(w, window),
            conv_rules.is_gradient_by_shifts(w, window),
            conv_rules.is_weight_gradient_by_shifts(w, window),
        )

    assert found() == expected
    monkeypatch.setattr(forms, "_chosen", [platforms.of("tpu")])
    assert found() == (False, False, False)
    # On GPUs one channel a group, of 64 taps at most.
    monkeypatch.setattr(forms, "_chosen", [platforms.of("cuda")])
    is_depthwise, is_dense = w[1] == 1 and math.prod(w[2:]) <= 64, set(window.stride) == {1}
    assert found() == (is_depthwise, is_depthwise and is_dense and window.groups > 1, False)

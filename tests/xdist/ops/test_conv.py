"""Convolutions on the device equal eager torch's, in every form the lowering takes."""

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both


def arrays(x: tuple[int, ...], w: tuple[int, ...], bias: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    kind = torch.float64
    return [torch.randn(*s, dtype=kind) for s in (x, w, (bias,))]


VOLUMES = {
    "strided and dilated": {"stride": (2, 1, 2), "padding": (2, 0, 1), "dilation": (2, 1, 1)},
    "grouped": {"padding": 1, "groups": 2},
    "of one plane": {"stride": (3, 2, 1)},
}
DEPTHS = {"strided and dilated": 3, "grouped": 2, "of one plane": 1}


@pytest.mark.parametrize("name", VOLUMES)
def test_convolutions_of_volumes_and_their_gradients_equal_eager(name) -> None:
    options = VOLUMES[name]
    weight = (6, 4 // options.get("groups", 1), DEPTHS[name], 3, 2)
    both(lambda *a: F.conv3d(*a, **options), *arrays((2, 4, 7, 6, 5), weight, 6))


@pytest.mark.parametrize("extra", [(0, 0, 0), (1, 0, 1)], ids=str)
def test_transposed_convolutions_of_volumes_equal_eager(extra) -> None:
    options = {"stride": 2, "padding": (1, 0, 0), "output_padding": extra}
    both(lambda *a: F.conv_transpose3d(*a, **options), *arrays((2, 4, 3, 2, 3), (4, 2, 3, 2, 3), 2))


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 4, 9, 8), (6, 4, 3, 2), {"stride": 2, "padding": 1, "dilation": (1, 2)}),
        ((2, 4, 5, 5), (3, 4, 1, 1), {"stride": 2}),
        ((2, 9, 2, 2), (8, 9, 1, 1), {}),
        ((2, 3, 6, 6), (3, 1, 3, 3), {"padding": 1, "groups": 3}),
        ((2, 3, 7, 6), (6, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 3}),
        ((2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
        ((2, 1, 6, 6), (5, 1, 3, 3), {}),
    ],
    ids=[
        "general",
        "1x1",
        "1x1 of many channels",
        "depthwise",
        "depthwise-many",
        "groups",
        "one-channel",
    ],
)
def test_a_2d_convolution_and_its_gradients_equal_eager(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, object]
) -> None:
    both(lambda *a: F.conv2d(*a, **options), *arrays(x, w, w[0]))


def test_convolutions_of_one_and_three_dimensions_equal_eager() -> None:
    both(lambda *a: F.conv1d(*a, stride=2, padding=1), *arrays((2, 3, 8), (4, 3, 3), 4))
    both(lambda *a: F.conv3d(*a, padding=1), *arrays((1, 2, 4, 5, 3), (3, 2, 3, 3, 3), 3))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_transposed_convolution_equals_eager(groups: int) -> None:
    tensors = arrays((2, 4, 4, 5), (4, 8 // groups, 3, 3), 8)
    both(
        lambda *a: F.conv_transpose2d(
            *a, stride=2, padding=1, output_padding=1, groups=groups, dilation=2
        ),
        *tensors,
    )


def test_output_padding_may_exceed_the_padding() -> None:
    tensors = arrays((1, 2, 4, 4), (2, 3, 2, 2), 3)
    both(lambda *a: F.conv_transpose2d(*a, dilation=3, output_padding=2), *tensors)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype, kernel: tuple[int, int]) -> None:
    x, w, bias = (t.to(dtype) for t in arrays((2, 4, 6, 6), (4, 4, *kernel), 4))
    wide = F.conv2d(x.float(), w.float(), bias.float()).to(dtype)
    found = F.conv2d(x.to("xla"), w.to("xla"), bias.to("xla")).cpu()
    torch.testing.assert_close(found, wide, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_an_empty_batch_gives_an_empty_result_and_zero_gradients() -> None:
    both(F.conv2d, *arrays((0, 3, 5, 5), (2, 3, 3, 3), 2))


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((2, 2), {"padding": 1}),
        ((1, 2), {"padding": (1, 2), "stride": (1, 2)}),
        ((2, 2), {"padding": 2, "dilation": 2}),
    ],
)
def test_a_kernel_larger_than_its_input_equals_eager(size: Any, options: dict[str, Any]) -> None:
    both(functools.partial(F.conv2d, **options), *arrays((3, 4, *size), (5, 4, 3, 3), 5))


def test_the_second_derivative_equals_eager() -> None:
    def penalty(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out = F.conv2d(x, w, bias, stride=2).sin().sum()
        return torch.autograd.grad(out, w, create_graph=True)[0]

    both(penalty, *arrays((1, 2, 7, 7), (2, 2, 3, 3), 2))

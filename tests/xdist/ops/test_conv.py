"""Convolutions on the device equal eager torch's, in every form the lowering takes."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from devices_agree import both
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xdist.ops.conv_forms import Window
from torch_xdist.ops.conv_phases import input_gradient_by_phases


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


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 4), st.integers(0, 7)),
        min_size=1,
        max_size=2,
    )
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_input_gradient_by_phases_equals_eagers(dims: list[tuple[int, ...]]) -> None:
    """Each dimension: stride, taps, padding, and by how much the input exceeds the least."""
    stride, kernel, padding, _ = zip(*dims)
    sizes = [max(1, k - 2 * p) + more for _, k, p, more in dims]
    grad_of = torch.ops.aten.convolution_backward.default
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, *sizes), torch.randn(4, 3, *kernel)
    convolve = F.conv1d if len(dims) == 1 else F.conv2d
    grad = torch.randn_like(convolve(x, w, stride=stride, padding=padding))
    ones = [1] * len(dims)
    rest = (None, stride, padding, ones, False, [0] * len(dims), 1, [True, False, False])
    expected = grad_of(grad, x, w, *rest)[0]
    window = Window(stride, padding, padding, tuple(ones), 1)
    found = input_gradient_by_phases(
        jnp.asarray(grad.numpy()), jnp.asarray(w.numpy()), x.shape, window
    )
    torch.testing.assert_close(torch.from_numpy(np.array(found)), expected)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 3, 9, 8), (5, 3, 4, 2), {"stride": (4, 2), "padding": (1, 0)}),
        ((2, 3, 3, 4), (5, 3, 3, 3), {"stride": 2, "padding": 1}),
        ((2, 3, 3, 4), (5, 3, 2, 3), {"stride": 3, "padding": 1}),
        ((2, 3, 9), (5, 3, 6), {"stride": 3, "padding": 2}),
    ],
    ids=["as many taps in each phase", "larger than its gradient", "phases without taps", "1d"],
)
def test_strides_whose_gradients_go_by_phases_equal_eager(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]
) -> None:
    convolve = F.conv1d if len(x) == 3 else F.conv2d
    both(lambda *a: convolve(*a, **options), *arrays(x, w, w[0]))


def test_an_infinite_gradient_stays_in_the_positions_that_its_taps_see() -> None:
    x, w = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3)
    grad = torch.zeros(1, 3, 2, 2)
    grad[0, 0, 1, 1] = float("inf")
    rest = (None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
    expected = torch.ops.aten.convolution_backward.default(grad, x, w, *rest)[0]
    window = Window((2, 2), (1, 1), (1, 1), (1, 1), 1)
    found = input_gradient_by_phases(
        jnp.asarray(grad.numpy()), jnp.asarray(w.numpy()), x.shape, window
    )
    assert np.array_equal(np.isinf(found), expected.isinf().numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_half_precision_volume_is_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(1, 8, 4, 5, 4), torch.randn(8, 4, 3, 3, 3)
    x, w = x.to(dtype), w.to(dtype)
    exact = F.conv_transpose3d(x.double(), w.double())
    found = F.conv_transpose3d(x.to("xla"), w.to("xla")).cpu()
    assert (
        torch.equal(found, exact.to(dtype))
        or (found.double() - exact).abs().max()
        <= (exact.to(dtype).double() - exact).abs().max() * 1.01
    )

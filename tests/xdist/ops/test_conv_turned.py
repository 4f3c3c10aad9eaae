"""Convolutions whose large weights a CPU turns around by a copy of their own."""

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

from torch_xdist.ops import conv_rules
from torch_xdist.ops.conv import convolution_backward
from torch_xdist.ops.conv_forms import Window
from torch_xdist.ops.conv_turned import LARGE, out_first, out_last

WINDOW = Window((1, 1), (1, 1), (1, 1), (1, 1), 1)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((5, 64, 6, 5), (128, 64, 3, 3), {"padding": 1}),
        ((5, 64, 9, 9), (128, 64, 3, 3), {"padding": 1, "stride": 2}),
        ((2, 64, 9, 7), (128, 64, 3, 3), {"dilation": 2, "padding": 2}),
        ((6, 96, 20), (128, 96, 7), {"padding": 3}),
        ((5, 128, 2, 2), (64, 128, 3, 3), {"padding": 1}),
    ],
    ids=["plain", "strided", "dilated, few samples", "of one dim", "smaller than its kernel"],
)
def test_the_value_and_its_gradients_equal_eager(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    value = F.conv2d if len(x) == 4 else F.conv1d
    both(lambda *a: value(*a, **options), *(torch.randn(s, dtype=torch.float64) for s in (x, w)))


@pytest.mark.on_cpu
@pytest.mark.parametrize(
    ("grad", "w", "window", "expected"),
    [
        ((8, 128, 8, 8), (128, 64, 3, 3), WINDOW, True),
        ((8, 64, 8, 8), (64, 64, 3, 3), WINDOW, False),
        ((8, 128, 2, 2), (128, 64, 3, 3), WINDOW, False),
        ((8, 512, 8, 8), (512, 256, 1, 1), WINDOW, False),
        ((8, 256, 8, 8), (256, 64, 3, 3), replace(WINDOW, groups=2), False),
        ((8, 128, 4, 8, 8), (128, 64, 3, 3, 3), replace(WINDOW, stride=(1, 1, 1)), False),
    ],
    ids=["large", "small", "smaller than its kernel", "one tap", "groups", "volumes"],
)
def test_a_large_weight_of_one_group_is_turned(
    grad: tuple[int, ...], w: tuple[int, ...], window: Window, expected: bool
) -> None:
    assert conv_rules.is_turned(grad, w, window) == expected
    assert (conv_rules.weight_gradient(grad, w, window) == "turned") == expected


@pytest.mark.parametrize("c", [3, LARGE // 64], ids=["small", "large"])
def test_what_is_turned_is_the_same_numbers(c: int) -> None:
    weight = jnp.arange(16.0 * c * 4).reshape(16, c, 2, 2)
    by_tap = jax.jit(out_last)(weight)
    assert (by_tap == weight.reshape(16, c, 4).transpose(2, 1, 0)).all()
    assert (jax.jit(out_first)(by_tap) == by_tap.transpose(2, 0, 1)).all()


@pytest.mark.on_cpu
def test_in_the_program_the_gradient_of_a_large_weight_is_a_matrix_turned_by_itself() -> None:
    def gradient(grad: Any, x: Any, w: Any) -> Any:
        ones = [1, 1]
        rest = (None, ones, ones, ones, False, [0, 0], 1, [False, True, False])
        return convolution_backward(grad, x, w, *rest)[1] + w

    shapes = ((8, 128, 6, 6), (8, 64, 6, 6), (128, 64, 3, 3))
    arrays = [jnp.zeros(shape, jnp.float32) for shape in shapes]
    options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    program = jax.jit(gradient).lower(*arrays).compile(compiler_options=options).as_text()
    # Its name is another where fusion emitters make the copy.
    turned = r"= f32\[128,576\]\{1,0\} (copy|fusion)\(%optimization_barrier[.\d]*\)"
    assert len(re.findall(turned, program[program.index("ENTRY") :])) == 1

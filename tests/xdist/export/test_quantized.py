"""Quantized tensors: the numbers of torch, and their types in StableHLO's text."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed

from torch_xdist.errors import ArgumentError
from torch_xdist.export import quantized
from torch_xdist.export.pending import get_stablehlo
from torch_xdist.export.programs import exported_program_to_stablehlo

ops = torch.ops.quantized_decomposed
SCALES = torch.tensor([3.2, 5.3, 0.1, 10.0])
ZEROS = torch.tensor([1, 2, -1, 0])


def one_scale(x):
    x = ops.quantize_per_tensor(x, 0.4, 2, -128, 127, torch.int8)
    return ops.dequantize_per_tensor(x, 0.4, 2, -128, 127, torch.int8)


def four_scales(x, scales, zeros):
    x = ops.quantize_per_channel(x, scales, zeros, 1, -127, 127, torch.int8)
    return ops.dequantize_per_channel(x, scales, zeros, 1, -127, 127, torch.int8)


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(3, 4) * 20


def test_one_scale_is_a_type_of_the_text(x):
    y = one_scale(x.to("xla"))
    text = get_stablehlo([y])
    assert text.count("tensor<3x4x!quant.uniform<i8:f32, 4.000000e-01:2>>") == 2
    assert text.count("stablehlo.uniform_quantize %") == 1
    assert text.count("stablehlo.uniform_dequantize %") == 1
    torch.testing.assert_close(y.cpu(), one_scale(x))


def test_a_scale_for_each_channel_is_a_type_of_the_text(x):
    y = four_scales(x.to("xla"), SCALES.to("xla"), ZEROS.to("xla"))
    wanted = "<i8<-127:127>:f32:1, {3.200000e+00:1,5.300000e+00:2,1.000000e-01:-1,1.000000e+01}>"
    assert get_stablehlo([y]).count("!quant.uniform" + wanted) == 2
    torch.testing.assert_close(y.cpu(), four_scales(x, SCALES, ZEROS))


def test_a_model_with_them_is_exported_and_runs(x):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scales", SCALES)
            self.register_buffer("zeros", ZEROS)

        def forward(self, x):
            return four_scales(one_scale(x), self.scales, self.zeros) + one_scale(x)

    made = exported_program_to_stablehlo(torch.export.export(Model(), (x,)))
    text = made.get_stablehlo_text()
    # Both uses of what was quantized alike are one.
    assert text.count("stablehlo.uniform_quantize %") == 2
    torch.testing.assert_close(made(x).cpu(), Model()(x))


def test_integers_that_others_use_are_converted_bit_by_bit(x):
    integers = ops.quantize_per_tensor(x.to("xla"), 0.4, 0, -128, 127, torch.int8).t()
    text = get_stablehlo([ops.dequantize_per_tensor(integers, 0.4, 0, -128, 127, torch.int8)])
    assert text.count("stablehlo.bitcast_convert") == 2
    assert "(tensor<3x4x!quant.uniform<i8:f32, 4.000000e-01>>) -> tensor<3x4xi8>" in text


def test_scales_that_are_computed_stay_arithmetic(x):
    y = four_scales(x.to("xla"), SCALES.to("xla") * 2, ZEROS.to("xla"))
    assert "quant" not in get_stablehlo([y])
    torch.testing.assert_close(y.cpu(), four_scales(x, SCALES * 2, ZEROS))


def test_the_calls_of_torch_xla_take_tensors_of_scales(x):
    told = SCALES, ZEROS, -128, 127, torch.int8, 1
    integers = quantized.quantize(x.to("xla"), *told)
    expected = quantized.quantize(x, *told)
    assert integers.dtype is torch.int8 and torch.equal(integers.cpu(), expected)
    back = quantized.dequantize(integers, *told)
    torch.testing.assert_close(back.cpu(), quantized.dequantize(expected, *told))


def test_one_scale_may_serve_a_whole_tensor(x):
    one = quantized.quantize(x, torch.tensor([0.5]), torch.tensor([0]), -128, 127, torch.int8)
    assert quantized.unpack_tensor_to_list(one) == (x / 0.5).round().clamp(-128, 127).tolist()


@pytest.mark.parametrize(
    ("scale", "zero", "axis", "dtype", "message"),
    [
        (torch.ones(()), torch.zeros(1), -1, torch.int8, r"scale has shape \[\]; along axis -1"),
        (torch.ones(1), torch.zeros(1), -1, torch.float32, r"dtype is torch\.float32; an integer"),
        (
            torch.ones(3),
            torch.zeros(1),
            1,
            torch.int8,
            r"scale has shape \[3\]; .* it must be \[4\]",
        ),
        (
            torch.ones(2),
            torch.zeros(1),
            -1,
            torch.int8,
            r"scale has shape \[2\]; .* it must be \[1\]",
        ),
        (torch.zeros(1), torch.zeros(1), -1, torch.int8, r"scale \[0\.0\] must be above 0"),
        (
            torch.ones(1),
            torch.tensor([200]),
            -1,
            torch.int8,
            r"zero_point \[200\] is outside of torch\.int8",
        ),
    ],
)
def test_scales_that_do_not_fit_are_refused(x, scale, zero, axis, dtype, message):
    with pytest.raises(ArgumentError, match=message):
        quantized.quantize(x, scale, zero, -128, 127, dtype, axis)

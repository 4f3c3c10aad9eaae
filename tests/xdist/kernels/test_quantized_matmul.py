"""Quantized products on the device equal those in plain torch, which equal the exact weight's."""

import re

import pytest
import torch
from devices_agree import served_by_cpu
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_xla
from torch_xdist.errors import ArgumentError
from torch_xla.experimental.quantized import _xla_dequantize, _xla_quantize
from torch_xla.experimental.xla_quantized_matmul import (
    XlaQuantizedLinear,
    _quantize_tensor,
    quantized_matmul_xla,
)
from torch_xla.stablehlo import exported_program_to_stablehlo

QUANTIZED = torch.ops.xla.quantized_matmul


def weights(block_size: int, bits: int = 8) -> tuple[torch.Tensor, ...]:
    """(integers, scales, zero points) of 6 inputs and 8 outputs."""
    torch.manual_seed(0)
    shape = (8, 6) if block_size == -1 else (6 // block_size, block_size, 8)
    of_scales = (8,) if block_size == -1 else (6 // block_size, 8)
    half = 2 ** (bits - 1)
    integers = torch.randint(-half, half, shape, dtype=torch.int8)
    return integers, torch.rand(of_scales) / half, torch.rand(of_scales)


@pytest.mark.parametrize("has_zero", [False, True], ids=["symmetric", "zero-point"])
@pytest.mark.parametrize(("block_size", "activation"), [(-1, False), (-1, True), (2, False)])
def test_a_quantized_product_on_the_device_equals_that_in_plain_torch(
    block_size, activation, has_zero
) -> None:
    w, scale, zero = weights(block_size)

    def run(x, w, scale, zero):
        zero = zero.detach() if has_zero else None
        found = QUANTIZED(x.detach(), w, scale.detach(), zero, block_size, False, activation)
        exact = w.to(x.dtype)
        if block_size == -1:
            exact = (exact * scale[:, None] - (0 if zero is None else zero[:, None])).t()
        else:
            exact = exact * scale[:, None] - (0 if zero is None else zero[:, None])
            exact = exact.reshape(6, 8)
        close = torch.cosine_similarity(found.flatten(), (x @ exact).flatten(), dim=0) > 0.999
        return found, close

    assert served_by_cpu(run, torch.randn(3, 5, 6), w, scale, zero) == []


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("activation", [False, True])
def test_integers_stay_as_narrow_as_they_are_in_the_product(bits: int, activation: bool) -> None:
    torch.manual_seed(0)
    w = torch.randint(-8, 8, (130, 67), dtype=torch.int8).to("xla")
    x, scale = torch.randn(33, 67, dtype=torch.bfloat16), torch.rand(130, dtype=torch.bfloat16)
    rest = {"quantize_activation": activation}
    found = quantized_matmul_xla(x.to("xla"), w, scale.to("xla"), int4_weight=bits == 4, **rest)
    hlo = torch_xla._XLAC._get_xla_tensors_hlo([found])
    of_x = "s8" if activation else "bf16"
    assert re.search(rf"dot\({of_x}\S* \S+ s{bits}\[130,67\]", hlo)
    there = quantized_matmul_xla(x.to("xla"), w, scale.to("xla"), **rest)
    torch.testing.assert_close(found.cpu(), there.cpu())
    torch.testing.assert_close(found.cpu(), quantized_matmul_xla(x, w.cpu(), scale, **rest))


def test_four_bits_are_cast_as_they_are() -> None:
    w, *_ = weights(-1, bits=4)
    assert torch_xla._XLAC._xla_cast_int4(w.to("xla"), []).tolist() == w.tolist()


def test_an_exported_product_of_four_bits_runs_on_a_cpu() -> None:
    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return quantized_matmul_xla(x, w, scale, int4_weight=True)

    w, scale, _ = weights(-1, bits=4)
    given = torch.randn(3, 6), w, scale
    bundle = exported_program_to_stablehlo(torch.export.export(Product(), given))
    found = bundle(*(value.to("xla") for value in given))
    torch.testing.assert_close(found.cpu(), Product()(*given))


def test_a_quantized_activation_is_multiplied_as_integers() -> None:
    w, scale, _ = weights(-1)
    there = [t.to("xla") for t in (torch.randn(3, 6), w, scale)]
    found = QUANTIZED(*there, quantize_activation=True)
    text = torch_xla._XLAC._get_xla_tensors_hlo([found])
    assert [line for line in text.splitlines() if " dot(" in line and "s32" in line]


@pytest.mark.parametrize("block_size", [-1, 3])
def test_the_layer_computes_the_product_on_both_devices(block_size) -> None:
    w, scale, zero = weights(block_size)
    layer = XlaQuantizedLinear(6, 8, block_size=block_size)
    layer.load_quantized_weight(w, scale, zero)
    x = torch.randn(4, 6)
    here = layer(x)
    torch.testing.assert_close(layer.to("xla")(x.to("xla")).cpu(), here)
    assert set(layer.state_dict()) == {"weight", "weight_scaler", "zero_point"}


def test_fake_tensors_and_a_captured_graph_see_one_operator() -> None:
    w, scale, _ = weights(-1)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (torch.randn(3, 6), w, scale)]
        assert QUANTIZED(*fakes).shape == (3, 8)
    layer = XlaQuantizedLinear(6, 8, is_symmetric=True)
    layer.load_quantized_weight(w, scale)
    graph = torch.export.export(layer, (torch.randn(3, 6),)).graph
    assert torch.ops.xla.quantized_matmul.default in [node.target for node in graph.nodes]


def test_weights_that_do_not_fit_are_refused() -> None:
    w, scale, zero = weights(-1)
    x = torch.randn(3, 6)
    with pytest.raises(ArgumentError, match=r"dtype is expected to be torch\.int8, got torch\.f"):
        QUANTIZED(x, w.float(), scale)
    with pytest.raises(ArgumentError, match=r"shape is expected to be \[8, 5\], got \[8, 6\]"):
        QUANTIZED(x[:, :5].to("xla"), w.to("xla"), scale.to("xla"))
    with pytest.raises(ArgumentError, match=r"zero point's shape is expected to be \[8\], got \[7"):
        QUANTIZED(x, w, scale, zero[:7])
    with pytest.raises(ArgumentError, match="divisible by block_size 4, got 6"):
        QUANTIZED(x, torch.zeros(1, 4, 8, dtype=torch.int8), scale, block_size=4)
    with pytest.raises(ArgumentError, match="with block_size 2 the activation cannot be quantized"):
        QUANTIZED(x, w, scale, block_size=2, quantize_activation=True)


def test_quantizing_gives_integers_and_scales_that_give_it_back() -> None:
    x = torch.randn(4, 6)
    exact, scale = _quantize_tensor(x)
    assert exact.dtype == torch.int8 and exact.abs().amax(-1).tolist() == [127] * 4
    torch.testing.assert_close(exact * scale, x, rtol=0, atol=float(scale.max()) / 2)


@pytest.mark.parametrize("axis", [-1, 1])
def test_quantizing_on_the_device_equals_torchs_operators(axis) -> None:
    torch.manual_seed(0)
    x, size = torch.randn(4, 6), 1 if axis == -1 else 6
    scale, zero = torch.rand(size) / 50 + 0.01, torch.randint(-5, 5, (size,))
    limits = -128, 127, torch.int8
    ours = _xla_quantize(x.to("xla"), scale, zero.to("xla"), *limits, axis)
    decomposed = torch.ops.quantized_decomposed
    if axis == -1:
        same = float(scale), int(zero)
        theirs = decomposed.quantize_per_tensor(x, *same, *limits)
        back = decomposed.dequantize_per_tensor(theirs, *same, *limits)
    else:
        theirs = decomposed.quantize_per_channel(x, scale, zero, axis, *limits)
        back = decomposed.dequantize_per_channel(theirs, scale, zero, axis, *limits)
    assert torch.equal(ours.cpu(), theirs)
    torch.testing.assert_close(_xla_dequantize(ours, scale, zero, *limits, axis).cpu(), back)


def test_scales_that_do_not_fit_are_refused() -> None:
    x, one, zero = torch.ones(4, 6), torch.ones(1), torch.zeros(1, dtype=torch.int64)
    limits = -128, 127, torch.int8
    with pytest.raises(ArgumentError, match=r"dtype is torch\.float32; an integer dtype is"):
        _xla_quantize(x, one, zero, -128, 127, torch.float32)
    with pytest.raises(ArgumentError, match=r"scale has shape \[2\]; along axis 1 of a .*\[6\]"):
        _xla_quantize(x, torch.ones(2), zero, *limits, axis=1)
    with pytest.raises(ArgumentError, match=r"zero_point \[200\] is outside of torch\.int8, which"):
        _xla_quantize(x, one, zero + 200, *limits)
    with pytest.raises(ArgumentError, match=r"scale \[0.0\] must be above 0"):
        _xla_dequantize(x, one * 0, zero, *limits)

"""XLA's own operators by their private names."""

import pytest
import torch

import torch_xla
from torch_xdist.errors import ArgumentError


def test_dot_general_contracts_and_batches_the_dims_it_is_told() -> None:
    x, w = torch.rand(4, 3, 5), torch.rand(4, 5, 2)
    dot = torch_xla._XLAC._xla_dot_general
    batched = dot(x.to("xla"), w.to("xla"), (([-1], [-2]), ([0], [0])))
    torch.testing.assert_close(batched.cpu(), x @ w)
    plain = dot(x.to("xla"), w[0].t().to("xla"), (([2], [1]), ()))
    torch.testing.assert_close(plain.cpu(), x @ w[0])


def test_dot_general_sums_in_the_dtype_it_is_told() -> None:
    x = torch.full((2, 300), 100, dtype=torch.int8, device="xla")
    found = torch_xla._XLAC._xla_dot_general(
        x, x, (([1], [1]), ()), preferred_element_type=torch.int32
    )
    assert found.dtype == torch.int32 and found.tolist() == [[3_000_000] * 2] * 2


def test_dot_general_refuses_what_it_cannot_do() -> None:
    x, here = torch.ones(2, 2, device="xla"), torch.ones(2, 2, dtype=torch.bfloat16)
    message = r"\(second argument\) to be an actual XLA tensor. Got: CPUBFloat16Type. Consider mov"
    with pytest.raises(RuntimeError, match=message):
        torch_xla._XLAC._xla_dot_general(x, here, (([1], [1]), ()))
    with pytest.raises(
        ArgumentError, match="precision_config 'high' is not supported; use torch_x"
    ):
        torch_xla._XLAC._xla_dot_general(x, x, (([1], [1]), ()), "high")


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_quantizing_by_lists_of_scales_is_torchs(axis) -> None:
    x = torch.linspace(-40, 40, 12).reshape(4, 3)
    count = 1 if axis == -1 else x.shape[axis]
    scales, zeros = [0.5, 0.25, 2.0, 1.0][:count], [1, -2, 0, 3][:count]
    told = scales, zeros, -128, 127, "int8", axis
    integers = torch_xla._XLAC._xla_quantize_tensor(x.to("xla"), *told)
    shape = [1, 1] if axis == -1 else [count if dim == axis else 1 for dim in range(2)]
    scale, zero = (torch.tensor(values).reshape(shape) for values in (scales, zeros))
    expected = ((x / scale).round() + zero).clamp(-128, 127).to(torch.int8)
    assert integers.dtype == torch.int8 and torch.equal(integers.cpu(), expected)
    back = torch_xla._XLAC._xla_dequantize_tensor(integers, *told)
    torch.testing.assert_close(back.cpu(), (expected.float() - zero) * scale)

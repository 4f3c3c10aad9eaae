"""The dtype of an out= tensor: torch casts into it, or refuses it in its words."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.alias.out_dtypes import _EXPECTED, _FOUND

CALLS = {
    "neg": lambda x, out: torch.neg(x, out=out),
    "floor": lambda x, out: torch.floor(x, out=out),
    "abs": lambda x, out: torch.abs(x, out=out),
    "clamp_min": lambda x, out: torch.clamp_min(x, 0, out=out),
    "gelu": lambda x, out: torch._C._nn.gelu(x, out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "diag": lambda x, out: torch.diag(x, out=out),
    "tril": lambda x, out: torch.tril(x, out=out),
    "softmax": lambda x, out: torch.softmax(x, 0, out=out),
    "sin": lambda x, out: torch.sin(x, out=out),
    "add": lambda x, out: torch.add(x, x, out=out),
    "exp": lambda x, out: torch.exp(x, out=out),
    "mul a number": lambda x, out: torch.mul(x, 2, out=out),
}
DTYPES = [torch.float32, torch.float64, torch.int64, torch.complex64, torch.bfloat16]


def outcome(device, call, dtype, out_dtype):
    """The result and its dtype, or torch's refusal."""
    x = torch.tensor([[1, -2], [3, 4]]).to(dtype).to(device)
    out = torch.empty(0, dtype=out_dtype, device=device)
    try:
        result = call(x, out)
    except RuntimeError as refusal:
        return str(refusal).split("\n")[0]
    assert result is out
    return result.dtype, result.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", CALLS)
def test_an_out_of_another_dtype_is_cast_into_or_refused_as_on_the_cpu(name, dtype):
    if name in ("softmax", "gelu") and dtype is torch.int64:
        dtype = torch.float64
    for out_dtype in DTYPES:
        want, got = (outcome(d, CALLS[name], dtype, out_dtype) for d in ("cpu", "xla"))
        if isinstance(want, str):
            assert got == want, out_dtype
        else:
            assert got[0] is want[0], out_dtype
            torch.testing.assert_close(torch.tensor(got[1]), torch.tensor(want[1]))


@pytest.mark.parametrize("name", ["abs", "neg", "add", "mm", "diag", "tril"])
def test_results_of_complex_numbers_too(name):
    for out_dtype in (torch.float32, torch.float64, torch.complex64, torch.bfloat16):
        want, got = (outcome(d, CALLS[name], torch.complex64, out_dtype) for d in ("cpu", "xla"))
        assert got == want, out_dtype


def test_each_name_is_an_operator_of_torch_with_an_out():
    for name in _FOUND | _EXPECTED:
        _, packet, overload = name.split(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        assert any(argument.is_out for argument in schema.arguments), name

"""Tensors from nothing."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_kaiser_windows_are_the_cpus(length, periodic, dtype):
    for beta in (0.0, 12.0):
        got = torch.kaiser_window(length, periodic, beta, dtype=dtype, device="xla")
        torch.testing.assert_close(
            got.cpu(), torch.kaiser_window(length, periodic, beta, dtype=dtype)
        )
    got = torch.kaiser_window(length, device="xla")
    torch.testing.assert_close(got.cpu(), torch.kaiser_window(length))

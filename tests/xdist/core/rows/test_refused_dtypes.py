"""Dtypes over which a compiler would end the process."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import platforms
from torch_xdist.core.devices import device, steps
from torch_xdist.core.rows import refused_dtypes
from torch_xdist.errors import UnsupportedDtypeError


def entries_of(dtype):
    steps.sync()
    x = torch.ones(3, device="xla").to(dtype) * 2
    return x, tuple(device.trace_of(0).tape.entries)


def test_complex128_is_refused_on_a_tpu_by_the_operator_that_makes_it():
    _x, entries = entries_of(torch.complex128)
    with pytest.raises(UnsupportedDtypeError, match=r"_to_copy.*complex128.* on TPU, whose"):
        refused_dtypes.check(entries, platforms.of("tpu"))
    refused_dtypes.check(entries, platforms.of("cpu"))


def test_complex64_is_not():
    _x, entries = entries_of(torch.complex64)
    refused_dtypes.check(entries, platforms.of("tpu"))

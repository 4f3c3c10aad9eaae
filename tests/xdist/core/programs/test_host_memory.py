"""A program that the host cannot hold is refused, and the step goes on without it."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import steps
from torch_xdist.core.programs import host_memory
from torch_xdist.errors import OutOfMemoryError


def test_more_than_the_host_has_is_an_error_with_both_numbers_and_other_tensors_live_on():
    other = torch.ones(3, device="xla") * 7
    large = torch.rand(1024, 1024, 1024, 1024, 1024, device="xla")
    total = large.sum()
    words = (
        f"Out of memory allocating [0-9]{{17}} bytes: .* this host has {host_memory.host_bytes()}"
    )
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=words):
            total.cpu()
    del large, total
    steps.sync()
    assert other.tolist() == [7, 7, 7]

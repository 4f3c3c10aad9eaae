"""A program that the device cannot hold is refused, and the step goes on without it."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import steps
from torch_xdist.core.programs import memory_bounds
from torch_xdist.errors import OutOfMemoryError


class Gpu:
    """Of a device that is not here, what is looked at."""

    platform = "gpu"

    def __init__(self, stats):
        self.memory_stats = lambda: stats

    def __str__(self):
        return "CUDA:0"


class Sized:
    """A program of 5 bytes of operands, of which 2 are given to results of 3; 4 in between."""

    output_size_in_bytes, alias_size_in_bytes = 3, 2
    temp_size_in_bytes, argument_size_in_bytes = 4, 5

    def memory(self):
        return self


@pytest.mark.on_cpu
def test_more_than_the_host_has_is_an_error_with_both_numbers_and_other_tensors_live_on():
    other = torch.ones(3, device="xla") * 7
    large = torch.rand(1024, 1024, 1024, 1024, 1024, device="xla")
    total = large.sum()
    words = (
        f"Out of memory allocating [0-9]{{17}} bytes: .* this host has {memory_bounds.host_bytes()}"
    )
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=words):
            total.cpu()
    del large, total
    steps.sync()
    assert other.tolist() == [7, 7, 7]


def test_a_program_that_needs_more_than_a_gpu_has_is_refused_with_its_numbers():
    memory_bounds.check(Sized(), Gpu({"bytes_limit": 10}))
    memory_bounds.check(Sized(), Gpu(None))
    words = "allocating 10 bytes: 5 for operands, 1 for results, 4 .* where CUDA:0 has 9 in all"
    with pytest.raises(OutOfMemoryError, match=words):
        memory_bounds.check(Sized(), Gpu({"bytes_limit": 9}))


def test_what_xla_says_of_a_full_device_becomes_that_error_with_what_is_held():
    full = RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 256.02GiB [x]")
    words = "CUDA:0: Out of memory while .* 256.02GiB; 7 of 9 bytes are held; delete tensors"
    with pytest.raises(OutOfMemoryError, match=words) as told:
        memory_bounds.raise_if_exhausted(full, Gpu({"bytes_in_use": 7, "bytes_limit": 9}))
    assert told.value.__cause__ is full and isinstance(told.value, RuntimeError)
    memory_bounds.raise_if_exhausted(told.value, Gpu(None))
    memory_bounds.raise_if_exhausted(RuntimeError("another"), Gpu(None))


def test_a_device_that_does_not_tell_of_its_memory_is_not_asked_further():
    full = RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    with pytest.raises(OutOfMemoryError, match="Out of memory; delete"):
        memory_bounds.raise_if_exhausted(full, object())
